// SPDX-License-Identifier: Apache-2.0

// shared_ptr code of libstdc++ 12 reads this variable of GLIBC_2.32 to skip
// atomics while a process has one thread. Our own copy says "more than one",
// which is true of any process that trains, and lets the library load on
// systems as old as torch's own wheels ask for (glibc 2.28).
extern "C" {
extern __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
}
