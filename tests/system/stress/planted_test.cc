// SPDX-License-Identifier: Apache-2.0
// planted_test PLANTED BUG: the programs must find the bug, and say by which.
#include <unistd.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: planted_test BINARY BUG\n");
    return 2;
  }
  // The budget is that of the long run under ThreadSanitizer; each bug has
  // been found within a handful.
  execl(argv[1], argv[1], "--plant", argv[2], "--programs", "2000", nullptr);
  std::perror(argv[1]);
  return 2;
}
