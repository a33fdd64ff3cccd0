// SPDX-License-Identifier: Apache-2.0
//
// accesses.h: who touched which bytes last. The log cuts the address line
// (device and pinned host memory alike) into pieces that have one history:
// the last writer and, per stream, the last reader since. A new access that is
// not ordered after them is a race; taking the memory away is an access that
// must come after everything.
//
// Only accesses that may still be pending are kept: pieces whose history the
// program has observed are dropped when touched, and swept when the log has
// doubled.
//
// Thread-safety: called under the simulator's lock.

#ifndef STRATALLOC_TESTS_CUDASIM_ACCESSES_H_
#define STRATALLOC_TESTS_CUDASIM_ACCESSES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace cudasim {

// One access: the operation's stream, its number there, and its name.
struct Stamp {
  size_t stream = 0;
  uint64_t number = 0;  // 0: none
  std::shared_ptr<const std::string> name;
};

struct Conflict {
  uint64_t address = 0;
  uint64_t bytes = 0;
  Stamp earlier;
  bool earlier_wrote = false;
};

class AccessLog {
 public:
  // True if the access comes before what is being noted or checked.
  using Ordered = std::function<bool(const Stamp&)>;
  using Report = std::function<void(const Conflict&)>;

  // Adds an access; each unordered earlier one that conflicts is reported.
  void Note(uint64_t address, uint64_t bytes, bool write, const Stamp& stamp,
            const Ordered& ordered, const Report& report);

  // The memory is taken away: every unordered access is reported, and the
  // range forgotten.
  void Forget(uint64_t address, uint64_t bytes, const Ordered& ordered,
              const Report& report);

  // True if a writer of any of these bytes is not over by `ordered`.
  bool HasWrite(uint64_t address, uint64_t bytes, const Ordered& ordered) const;

  // Drops what `ordered` says is over.
  void Sweep(const Ordered& ordered);
  // True when Sweep is due.
  bool IsLarge() const { return pieces_.size() > limit_; }

  void Clear() { pieces_.clear(); }
  size_t size() const { return pieces_.size(); }

 private:
  struct Piece {
    uint64_t end = 0;
    Stamp write;
    std::vector<Stamp> reads;
  };
  using Pieces = std::map<uint64_t, Piece>;

  // Cuts a piece in two if `address` lies inside it.
  void CutAt(uint64_t address);
  static void ReportUnordered(uint64_t start, const Piece& piece, bool reads,
                              const Ordered& ordered, const Report& report);

  Pieces pieces_;
  size_t limit_ = 4096;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_CUDASIM_ACCESSES_H_
