// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/bench/scopes.h"

#include <algorithm>

#include "python_shim/c_api/c_api.h"
#include "python_shim/torch_bridge/bench/thread_time.h"

double stratalloc_bench_scopes_ns(int pairs) {
  const double before = stratalloc::ThreadCpuNanoseconds();
  for (int i = 0; i < pairs; ++i) {
    stratalloc_scope_push(0, 0, 0);
    stratalloc_scope_pop();
  }
  return (stratalloc::ThreadCpuNanoseconds() - before) / std::max(pairs, 1);
}
