// SPDX-License-Identifier: Apache-2.0
// What the recording core does not play: these functions are there so that the
// bridge loads, and refuse by name. They are tested with the real core, by the
// tests of PyTorch's own features in tests/cudasim.
#include <cstdio>

#include "python_shim/c_api.h"

namespace {

int Refuse(const char* function, stratalloc_error* error) {
  if (error != nullptr) {
    error->code = STRATALLOC_UNSUPPORTED;
    std::snprintf(error->message, sizeof(error->message),
                  "the recording core has no %s", function);
  }
  return STRATALLOC_UNSUPPORTED;
}

}  // namespace

extern "C" {

int stratalloc_device_count(void) { return 1; }

int stratalloc_pool_use(int, stratalloc_pool_id, stratalloc_error* error) {
  return Refuse(__func__, error);
}
int stratalloc_pool_use_source(int, stratalloc_pool_id,
                               void* (*)(void*, uint64_t, uint64_t),
                               void (*)(void*, void*), void* context,
                               void (*drop)(void*), stratalloc_error* error) {
  drop(context);
  return Refuse(__func__, error);
}
int stratalloc_pool_begin(int, stratalloc_pool_id, int (*)(void*, uint64_t),
                          void* context, void (*drop)(void*), uint64_t,
                          const stratalloc_access*, int,
                          stratalloc_error* error) {
  drop(context);
  return Refuse(__func__, error);
}
int stratalloc_pool_end(int, stratalloc_pool_id, stratalloc_error* error) {
  return Refuse(__func__, error);
}
int stratalloc_pool_release(int, stratalloc_pool_id, stratalloc_error* error) {
  return Refuse(__func__, error);
}
int stratalloc_pool_use_count(int, stratalloc_pool_id) { return 0; }
int stratalloc_pool_set_use_on_oom(int, stratalloc_pool_id, int,
                                   stratalloc_error* error) {
  return Refuse(__func__, error);
}
int stratalloc_pool_set_no_split(int, stratalloc_pool_id,
                                 stratalloc_error* error) {
  return Refuse(__func__, error);
}
int stratalloc_pool_empty(int, stratalloc_pool_id, stratalloc_error* error) {
  return Refuse(__func__, error);
}
int stratalloc_pool_blocks(int, stratalloc_pool_id, void (*)(void*, void*),
                           void*, stratalloc_error* error) {
  return Refuse(__func__, error);
}

int stratalloc_checkpoint_take(int, stratalloc_pool_id, stratalloc_checkpoint**,
                               stratalloc_error* error) {
  return Refuse(__func__, error);
}
void stratalloc_checkpoint_drop(stratalloc_checkpoint*) {}
int stratalloc_checkpoint_go_back(int, const stratalloc_checkpoint*,
                                  void (*)(void*, void*),
                                  void (*)(void*, void*), void*,
                                  stratalloc_error* error) {
  return Refuse(__func__, error);
}

}  // extern "C"
