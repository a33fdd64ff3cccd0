// SPDX-License-Identifier: Apache-2.0
//
// control_text.h: how the text functions of the control API answer.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTROL_TEXT_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTROL_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

namespace cudasim {

// At most `bytes` characters with the closing zero; the whole text's length.
inline int CopyText(const std::string& from, char* text, int bytes) {
  if (text != nullptr && bytes > 0) {
    const size_t count = std::min(from.size(), static_cast<size_t>(bytes) - 1);
    std::memcpy(text, from.data(), count);
    text[count] = '\0';
  }
  return static_cast<int>(from.size());
}

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTROL_TEXT_H_
