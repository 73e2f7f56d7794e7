// SPDX-License-Identifier: MIT

package main

const sysGetcpu = 309
