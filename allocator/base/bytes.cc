// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/bytes.h"

#include <cstdio>

namespace stratalloc {

std::string FormatBytes(Bytes bytes) {
  char text[64];
  if (bytes <= kKiB) {
    std::snprintf(text, sizeof(text), "%llu bytes",
                  static_cast<unsigned long long>(bytes));
  } else if (bytes <= kMiB) {
    std::snprintf(text, sizeof(text), "%.2f KiB",
                  static_cast<double>(bytes) / kKiB);
  } else if (bytes <= kGiB) {
    std::snprintf(text, sizeof(text), "%.2f MiB",
                  static_cast<double>(bytes) / kMiB);
  } else {
    std::snprintf(text, sizeof(text), "%.2f GiB",
                  static_cast<double>(bytes) / kGiB);
  }
  return text;
}

}  // namespace stratalloc
