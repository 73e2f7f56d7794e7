/* SPDX-License-Identifier: MIT */
/* cpus.h - the CPUs on which workers may run (cpus.c). */
#ifndef RSI_CORE_CPUS_H
#define RSI_CORE_CPUS_H

#include "core/worker.h"

void rsi_cpus_setup(void);
/* "0-3,8". Returns 0 or -EINVAL. */
int rsi_cpus_parse(const char *text, struct rsi_cpus *cpus);
const struct rsi_cpus *rsi_cpus_of(const struct rouse_cluster *cluster);
/* Whether anything was ever bound to CPUs. Under the runtime's lock. */
bool rsi_cpus_differ(void);
void rsi_cpus_bind_locked(struct rouse_cluster *cluster, const struct rsi_cpus *cpus);
int rsi_cpus_pin_locked(struct rsi_worker *w, const struct rsi_cpus *cpus);
int rsi_cpus_pin(struct rouse_cluster *cluster, int worker, const struct rsi_cpus *cpus);

#endif
