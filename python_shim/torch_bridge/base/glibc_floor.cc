// SPDX-License-Identifier: Apache-2.0

// shared_ptr code of libstdc++ 12 reads this variable of GLIBC_2.32 to skip
// atomics while a process has one thread. Our own copy says "more than one",
// which is true of any process that trains, and the bridge asks for no newer
// glibc than it has to: what is left is dlsym, which wherever it is linked gets
// that system's version (2.34 on Debian 12).
extern "C" {
extern __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
}
