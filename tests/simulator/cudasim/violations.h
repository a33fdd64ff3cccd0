// SPDX-License-Identifier: Apache-2.0
//
// violations.h: what the program did that a real device would have answered
// with wrong bytes or a fault. Each entry begins with the name of its kind,
// which never changes, and is one sentence naming the block, both operations
// with their streams, and the missing edge. The list is the verdict of a run: a
// test that uses the simulated device ends by asking that it is empty.
//
// Thread-safety: a lock of its own, so that it may be added to from anywhere.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_VIOLATIONS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_VIOLATIONS_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace cudasim {

// "[0x7f0000000000, +2097152 bytes)"
std::string RangeText(uint64_t address, uint64_t bytes);

// The kinds. README.md says what each means.
namespace kind {
inline constexpr char kRace[] = "race";
inline constexpr char kUseAfterFree[] = "use-after-free";
inline constexpr char kUseBeforeCopyIn[] = "use-before-copy-in";
inline constexpr char kUseAfterUnmap[] = "use-after-unmap";
inline constexpr char kIllegalAddress[] = "illegal-address";
inline constexpr char kUnmapWhilePending[] = "unmap-while-pending";
inline constexpr char kDoubleRelease[] = "double-release";
inline constexpr char kMappingLeak[] = "mapping-leak";
inline constexpr char kHostFreeInFlight[] = "host-free-in-flight";
inline constexpr char kHostWriteInFlight[] = "host-write-in-flight";
inline constexpr char kFreeWhileShared[] = "free-while-shared";
inline constexpr char kUseAfterOwnersFree[] = "use-after-owners-free";
inline constexpr char kStreamGone[] = "stream-gone";
}  // namespace kind

class Violations {
 public:
  // The entry becomes "kind: text".
  // Also printed on stderr while fewer than ten were (and not silenced).
  void Add(const char* kind, const std::string& text);
  long count() const;
  bool Get(long index, std::string* text) const;
  // The kind's name alone.
  bool GetKind(long index, std::string* kind) const;
  void Clear();
  void set_verbose(bool verbose) { verbose_ = verbose; }
  bool verbose() const { return verbose_; }

 private:
  mutable std::mutex mu_;
  std::vector<std::string> texts_;  // the first 1000; all are counted
  long count_ = 0;
  bool verbose_ = true;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_VIOLATIONS_H_
