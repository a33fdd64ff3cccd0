// SPDX-License-Identifier: Apache-2.0
// One state that lasts, for people: a line when it begins, and when its reason
// changes; none for each attempt that meets it again. A device that an error
// has made unusable refuses every eviction from there on, and programs that
// lack room try in loops.
//
// Its owner's lock.
#ifndef STRATALLOC_TIERING_ENGINE_TOLD_H_
#define STRATALLOC_TIERING_ENGINE_TOLD_H_

#include <string>

#include "allocator/base/check.h"

namespace stratalloc {

class Told {
 public:
  // `line` is for people and may have what is of this attempt only (figures,
  // the call that failed); `reason` says whether it is the same state still.
  void Tell(LogLevel level, const std::string& reason,
            const std::string& line) {
    if (!told_.empty() && told_ == reason) return;
    told_ = reason;
    Log(level, line);
  }
  // It has passed: the next one is told, whatever its reason.
  void Over() { told_.clear(); }
  bool lasts() const { return !told_.empty(); }

 private:
  std::string told_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_TOLD_H_
