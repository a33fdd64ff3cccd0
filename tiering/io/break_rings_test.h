// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_TIERING_IO_BREAK_RINGS_TEST_H_
#define STRATALLOC_TIERING_IO_BREAK_RINGS_TEST_H_

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace stratalloc {

// Puts /dev/null in the place of every ring of this process.
inline int BreakRings() {
  int broken = 0;
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  DIR* const all = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(all)) {
    char target[PATH_MAX] = {};
    const std::string link = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(link.c_str(), target, sizeof(target) - 1) <= 0) continue;
    if (std::strstr(target, "[io_uring]") == nullptr) continue;
    broken += dup2(null, std::stoi(entry->d_name)) >= 0;
  }
  closedir(all);
  close(null);
  return broken;
}

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_BREAK_RINGS_TEST_H_
