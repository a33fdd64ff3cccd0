// SPDX-License-Identifier: Apache-2.0
// A library that takes 64 bytes of the room for thread-locals that glibc keeps
// for libraries opened late; each copy of its file takes as many again.
extern "C" __attribute__((visibility("default"))) char* thread_locals_hog() {
  static thread_local __attribute__((tls_model("initial-exec"))) char mine[64];
  return mine;
}
