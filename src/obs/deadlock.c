/* SPDX-License-Identifier: MIT */
#include "core/core.h"
void rsi_obs_all_wait(void)
{
}
