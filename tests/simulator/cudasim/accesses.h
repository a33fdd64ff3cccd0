// SPDX-License-Identifier: Apache-2.0
//
// accesses.h: who touched which bytes last. The log cuts a line of bytes into
// pieces that have one history: the last writer and, per stream, the last
// reader since. A new access that is not ordered after them is a race; taking
// the memory away is an access that must come after everything.
//
// The line is that of the bytes, not of their addresses: device memory lies on
// it by physical handle, so that two mappings of one handle are the same bytes
// (Simulator::Segments translates); pinned host memory lies at its address.
//
// Only accesses that may still be pending are kept: those through a mapping go
// with it, and those that every thread has observed are swept when the log has
// doubled.
//
// Thread-safety: called under the simulator's lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_ACCESSES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_ACCESSES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace cudasim {

// An operation as a report names it.
struct OperationName {
  std::string name;    // "cudaMemcpyAsync"
  std::string stream;  // "stream 0x570000000010"
  uint64_t number = 0;

  // "cudaMemcpyAsync on stream 0x570000000010 (operation 3)"
  std::string Text() const;
};

// One access: the operation's stream, its number there, and its name.
struct Stamp {
  size_t stream = 0;
  uint64_t number = 0;   // 0: none
  uint64_t mapping = 0;  // through which the bytes were reached; 0: host
  bool copy_in = false;  // brought the bytes from the host
  bool freed = false;    // the block it was in has been freed since
  std::shared_ptr<const OperationName> operation;
};

struct Conflict {
  uint64_t start = 0;  // on the line
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
  void Note(uint64_t start, uint64_t bytes, bool write, const Stamp& stamp,
            const Ordered& ordered, const Report& report);

  // The mapping is taken away: every unordered access through it is reported,
  // and all of them forgotten.
  void Forget(uint64_t start, uint64_t bytes, uint64_t mapping,
              const Ordered& ordered, const Report& report);

  // The block was given back to an allocator, which may hand it out again:
  // a later conflict with what is there now is a use after free.
  void MarkFreed(uint64_t start, uint64_t bytes);

  // True if a writer of any of these bytes is not over by `ordered`.
  bool HasWrite(uint64_t start, uint64_t bytes, const Ordered& ordered) const;

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
    std::vector<Stamp> reads;  // since the write, one per stream and mapping
    // Accesses before the write through other mappings, which it does not
    // stand for when one of those is taken away. Nearly always empty.
    std::vector<Stamp> older;

    bool empty() const {
      return write.number == 0 && reads.empty() && older.empty();
    }
  };
  using Pieces = std::map<uint64_t, Piece>;

  // Cuts a piece in two if `at` lies inside it.
  void CutAt(uint64_t at);
  void Write(uint64_t start, uint64_t end, const Stamp& stamp);
  static void ReportUnordered(uint64_t start, const Piece& piece, bool reads,
                              const Ordered& ordered, const Report& report);

  Pieces pieces_;
  size_t limit_ = 4096;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_ACCESSES_H_
