// SPDX-License-Identifier: Apache-2.0
#include "tiering/policy/schedule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "tiering/policy/range_maximum.h"

namespace stratalloc {
namespace {

// A class of gaps is this much longer than the next one.
constexpr double kClassRatio = 1.3;
// Uses in a gap that is not worth a copy.
constexpr std::size_t kShortestGap = 2;
// How gaps up to a free are ranked: before all others, or as gaps of twice
// their length, since their bytes pass the bus once and those of others twice.
enum class Frees : std::uint8_t { kFirst, kByLength };

// Gaps of adjacent pages with equal uses: the gaps after the uses
// [first, first + count).
struct Unit {
  std::size_t first = 0;
  std::size_t count = 0;
  int gap_class = 0;
  std::int64_t bytes = 0;
};

class Planner {
 public:
  Planner(std::span<const CycleUse> cycle, const ScheduleLimits& limits,
          Frees frees)
      : cycle_(cycle),
        frees_(frees),
        room_(limits.capacity > limits.window ? limits.capacity - limits.window
                                              : 0),
        slack_(static_cast<std::int64_t>(limits.capacity - room_)),
        unit_(limits.unit != 0 ? limits.unit : limits.window / 4),
        page_(cycle.size()),
        next_(cycle.size()),
        needs_(Needs()) {
    result_.leaves.assign(cycle.size(), 0);
  }

  Schedule Run() {
    // What fits whole needs no room for pages on their way.
    if (cycle_.empty() || needs_.Maximum() <= slack_) {
      return std::move(result_);
    }
    const std::vector<Unit> units = InOrder(Units());
    for (std::size_t begin = 0, end = 0; begin < units.size(); begin = end) {
      end = ClassEnd(units, begin);
      // What is larger than the need comes after what is not.
      for (bool larger : {false, true}) {
        for (std::size_t i = begin; i < end && needs_.Maximum() > 0; ++i) {
          Take(units[i], larger);
        }
      }
    }
    for (std::size_t i = units.size(); i-- > 0;) DropSuperfluous(units[i]);
    if (needs_.Maximum() > 0) {
      result_.shortfall = static_cast<Bytes>(needs_.Maximum());
    }
    CountBytes();
    return std::move(result_);
  }

 private:
  std::size_t size() const { return cycle_.size(); }
  // Uses in the gap after use `i`.
  std::size_t Length(std::size_t i) const { return next_[i] - i - 1; }
  bool IsLast(std::size_t i) const { return cycle_[next_[i] % size()].freed; }
  std::int64_t BytesAt(std::size_t i) const {
    return static_cast<std::int64_t>(cycle_[i].bytes);
  }

  // Fills page_ and next_. Returns the bytes that lack at each use while no
  // page leaves.
  std::vector<std::int64_t> Needs() {
    std::unordered_map<Address, std::uint32_t> known;
    known.reserve(size());
    std::vector<std::size_t> soonest;  // use of each page
    for (std::size_t i = 0; i < size(); ++i) {
      const auto [it, is_new] = known.try_emplace(
          cycle_[i].page, static_cast<std::uint32_t>(soonest.size()));
      page_[i] = it->second;
      if (is_new) soonest.push_back(i + size());
    }
    pages_ = soonest.size();
    std::vector<std::int64_t> live(size() + 1, 0);
    for (std::size_t i = size(); i-- > 0;) {
      next_[i] = std::exchange(soonest[page_[i]], i);
      if (cycle_[i].freed) continue;
      live[i] += BytesAt(i);
      live[std::min(next_[i], size())] -= BytesAt(i);
      if (next_[i] > size()) {
        live[0] += BytesAt(i);
        live[next_[i] - size()] -= BytesAt(i);
      }
    }
    std::int64_t now = 0;
    for (std::int64_t& at : live) {
      now += at;
      at = now - static_cast<std::int64_t>(room_);
    }
    live.pop_back();
    return live;
  }

  std::vector<Unit> Units() const {
    std::vector<Unit> units;
    for (std::size_t i = 0; i < size(); ++i) {
      if (cycle_[i].freed || Length(i) <= kShortestGap) continue;
      const int gap_class = ClassOf(i);
      if (!units.empty()) {
        Unit& last = units.back();
        const std::size_t before = last.first + last.count - 1;
        if (before + 1 == i && next_[before] + 1 == next_[i] &&
            cycle_[before].page + cycle_[before].bytes == cycle_[i].page &&
            last.gap_class == gap_class &&
            last.bytes + BytesAt(i) <= static_cast<std::int64_t>(unit_)) {
          ++last.count;
          last.bytes += BytesAt(i);
          continue;
        }
      }
      units.push_back({i, 1, gap_class, BytesAt(i)});
    }
    return units;
  }

  // The larger, the sooner it is taken.
  int ClassOf(std::size_t i) const {
    constexpr int kFirst = 1 << 20;
    const bool last = IsLast(i);
    if (last && frees_ == Frees::kFirst) return kFirst;
    const auto length = static_cast<double>(last ? 2 * Length(i) : Length(i));
    return static_cast<int>(std::log(length) / std::log(kClassRatio));
  }

  static std::size_t ClassEnd(const std::vector<Unit>& units,
                              std::size_t begin) {
    std::size_t end = begin;
    while (end < units.size() &&
           units[end].gap_class == units[begin].gap_class) {
      ++end;
    }
    return end;
  }

  static std::vector<Unit> InOrder(std::vector<Unit> units) {
    std::stable_sort(
        units.begin(), units.end(),
        [](const Unit& a, const Unit& b) { return a.gap_class > b.gap_class; });
    std::vector<Unit> ordered;
    ordered.reserve(units.size());
    for (std::size_t begin = 0, end = 0; begin < units.size(); begin = end) {
      end = ClassEnd(units, begin);
      const std::size_t count = end - begin;
      const int bits = std::bit_width(count - 1);
      for (std::size_t i = 0; i < std::size_t{1} << bits; ++i) {
        std::size_t reversed = 0;
        for (int bit = 0; bit < bits; ++bit) {
          reversed = reversed * 2 + (i >> bit & 1);
        }
        if (reversed < count) ordered.push_back(units[begin + reversed]);
      }
    }
    return ordered;
  }

  // Of the uses in the gaps from the one after `first` to the one after `last`.
  std::int64_t MostNeeded(std::size_t first, std::size_t last) const {
    const std::size_t begin = first + 1, end = next_[last];
    std::int64_t most = needs_.Maximum(begin, std::min(end, size()));
    if (end > size()) most = std::max(most, needs_.Maximum(0, end - size()));
    return most;
  }
  void AddToGap(std::size_t i, std::int64_t bytes) {
    needs_.Add(i + 1, std::min(next_[i], size()), bytes);
    if (next_[i] > size()) needs_.Add(0, next_[i] - size(), bytes);
  }

  void Take(const Unit& unit, bool larger) {
    if (result_.leaves[unit.first] != 0) return;
    const std::size_t last = unit.first + unit.count - 1;
    const std::int64_t most = MostNeeded(unit.first, last);
    if (larger ? most <= 0 : most < unit.bytes) return;
    for (std::size_t i = unit.first; i <= last; ++i) {
      result_.leaves[i] = 1;
      AddToGap(i, -BytesAt(i));
    }
  }

  void DropSuperfluous(const Unit& unit) {
    for (std::size_t i = unit.first + unit.count; i-- > unit.first;) {
      if (result_.leaves[i] == 0 || MostNeeded(i, i) > -BytesAt(i)) continue;
      result_.leaves[i] = 0;
      AddToGap(i, BytesAt(i));
    }
  }

  void CountBytes() {
    // A second turn, so that writes before the cycle's end are known at its
    // beginning.
    std::vector<std::uint8_t> dirty(pages_, 0);
    for (std::size_t i = 0; i < 2 * size(); ++i) {
      const std::size_t at = i % size();
      const CycleUse& use = cycle_[at];
      std::uint8_t& is_dirty = dirty[page_[at]];
      is_dirty = !use.freed && (is_dirty || use.written);
      if (result_.leaves[at] == 0) continue;
      if (i >= size()) {
        if (!IsLast(at)) result_.bytes_in += use.bytes;
        if (is_dirty) result_.bytes_out += use.bytes;
      }
      is_dirty = false;
    }
  }

  std::span<const CycleUse> cycle_;
  Frees frees_;
  Bytes room_;
  std::int64_t slack_;  // what room_ leaves of the capacity
  Bytes unit_;
  std::size_t pages_ = 0;
  std::vector<std::uint32_t> page_;  // of each use, by a number below pages_
  // The page's next use. From the cycle's size on: in its next turn.
  std::vector<std::size_t> next_;
  RangeMaximum needs_;  // bytes too many at each use
  Schedule result_;
};

Bytes Busier(const Schedule& schedule) {
  return std::max(schedule.bytes_in, schedule.bytes_out);
}

// Operators wait for copies in and not for copies out, so that more copies in
// are worth it only where the busier direction has a quarter less to do.
bool IsMuchCheaper(const Schedule& a, const Schedule& b) {
  return a.shortfall <= b.shortfall && Busier(a) * 4 <= Busier(b) * 3;
}

}  // namespace

Schedule MakeSchedule(std::span<const CycleUse> cycle,
                      const ScheduleLimits& limits) {
  Schedule first = Planner(cycle, limits, Frees::kFirst).Run();
  Schedule by_length = Planner(cycle, limits, Frees::kByLength).Run();
  return IsMuchCheaper(by_length, first) ? by_length : first;
}

}  // namespace stratalloc
