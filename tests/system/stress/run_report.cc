// SPDX-License-Identifier: Apache-2.0
#include "tests/system/stress/run_report.h"

#include <cstdio>
#include <sstream>

#include "allocator/base/clock.h"

namespace stratalloc {
namespace {

constexpr std::int64_t kProgressEveryNs = 30'000'000'000;
constexpr double kSecondNs = 1e9;

double MiB(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

bool BeginsWith(const std::string& text, const char* start) {
  return text.rfind(start, 0) == 0;
}

void Print(const Tally& t) {
  std::printf(
      "  %llu programs: %llu with threads, %llu with a disk, %llu with the "
      "background thread, %llu with two devices, %llu roomy\n"
      "  %llu steps: %llu mallocs (%llu refused), %llu frees, %llu operators "
      "(%llu refused), %llu scope events, %llu planned failures\n"
      "  %llu handles evicted (%llu clean), %llu restored (%llu ahead of "
      "use), %.1f MiB to disk, %.1f MiB from disk, %llu operands verified, "
      "%llu poisoned\n"
      "  %llu mallocs out of bins, %llu frees into them; %llu blocks changed "
      "hands; %llu private pools, %llu times back to a checkpoint\n"
      "  %llu operators in parts and %llu nested in them, %llu mallocs inside; "
      "%llu waits for room (%llu lost theirs), %llu for other threads (%llu "
      "got on meanwhile); "
      "%llu lists in %llu slices (%llu halved, %llu lists refused)\n",
      (unsigned long long)t.programs, (unsigned long long)t.threaded,
      (unsigned long long)t.with_disk, (unsigned long long)t.with_background,
      (unsigned long long)t.two_devices, (unsigned long long)t.roomy,
      (unsigned long long)t.steps, (unsigned long long)t.mallocs,
      (unsigned long long)t.refused_mallocs, (unsigned long long)t.frees,
      (unsigned long long)t.operators, (unsigned long long)t.refused_operators,
      (unsigned long long)t.scopes, (unsigned long long)t.faults,
      (unsigned long long)t.evictions, (unsigned long long)t.clean_drops,
      (unsigned long long)t.restores, (unsigned long long)t.planned,
      static_cast<double>(t.to_disk_bytes) / (1 << 20),
      static_cast<double>(t.from_disk_bytes) / (1 << 20),
      (unsigned long long)t.verified, (unsigned long long)t.poisoned,
      (unsigned long long)t.from_bins, (unsigned long long)t.into_bins,
      (unsigned long long)t.handed, (unsigned long long)t.pools,
      (unsigned long long)t.gone_back, (unsigned long long)t.outermost,
      (unsigned long long)t.nested, (unsigned long long)t.inside,
      (unsigned long long)t.waited, (unsigned long long)t.ousted,
      (unsigned long long)t.blocked, (unsigned long long)t.met,
      (unsigned long long)t.lists, (unsigned long long)t.slices,
      (unsigned long long)t.halved, (unsigned long long)t.refused_lists);
  std::printf(
      "  %llu steps for another device, %llu copies between two, %llu frees by "
      "another's thread; %llu programs without a device\n"
      "  calls that failed (of so many plans):",
      (unsigned long long)t.elsewhere, (unsigned long long)t.copies,
      (unsigned long long)t.freed_elsewhere, (unsigned long long)t.not_opened);
  for (const auto& [call, figures] : t.faults_by_call) {
    std::printf(" %s %llu (%llu)", call.c_str(),
                (unsigned long long)figures.struck,
                (unsigned long long)figures.planned);
  }
  std::printf("\n  %llu graphs captured, %llu forks, %llu times a late disk\n",
              (unsigned long long)t.captures, (unsigned long long)t.forks,
              (unsigned long long)t.late);
}

}  // namespace

RunReport::RunReport(std::uint64_t first_seed, long programs)
    : first_seed_(first_seed),
      programs_(programs),
      started_ns_(NowNs()),
      began_ns_(started_ns_),
      printed_ns_(started_ns_) {}

double RunReport::Seconds() const {
  return static_cast<double>(NowNs() - started_ns_) / kSecondNs;
}

void RunReport::Add(std::uint64_t seed, const std::string& wrong) {
  const std::int64_t now = NowNs();
  if (now - began_ns_ > slowest_ns_) {
    slowest_ns_ = now - began_ns_;
    slowest_seed_ = seed;
  }
  began_ns_ = now;
  ++ended_;
  wrong_programs_ += !wrong.empty();
  std::istringstream lines(wrong);
  for (std::string line; std::getline(lines, line);) {
    if (BeginsWith(line, "(")) continue;  // of the failures that were planned
    if (BeginsWith(line, "violation:")) {
      ++violations_;
    } else if (BeginsWith(line, "bytes ")) {
      ++lost_bytes_;
    } else if (BeginsWith(line, "leaked:")) {
      ++leaks_;
    } else {
      ++others_;
    }
  }
  if (now - printed_ns_ < kProgressEveryNs) return;
  printed_ns_ = now;
  std::fprintf(stderr,
               "stress: %ld of %ld programs in %.0f s (%.1f/s), %ld wrong, "
               "next seed %llu\n",
               ended_, programs_, Seconds(),
               static_cast<double>(ended_) / Seconds(), wrong_programs_,
               (unsigned long long)seed + 1);
}

void RunReport::PrintEnd(const Tally& tally) const {
  std::printf(
      "stress: %ld programs from seed %llu in %.1f s (%.1f/s): %ld wrong, %ld "
      "violations, %ld lost bytes, %ld leaks, %ld other complaints; %.1f MiB "
      "evicted, %.1f MiB restored; slowest seed %llu with %.1f s\n",
      ended_, (unsigned long long)first_seed_, Seconds(),
      static_cast<double>(ended_) / Seconds(), wrong_programs_, violations_,
      lost_bytes_, leaks_, others_, MiB(tally.evicted_bytes),
      MiB(tally.restored_bytes), (unsigned long long)slowest_seed_,
      static_cast<double>(slowest_ns_) / kSecondNs);
  Print(tally);
}

}  // namespace stratalloc
