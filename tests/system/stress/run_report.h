// SPDX-License-Identifier: Apache-2.0
// Report of a run of many programs: a line of progress every 30 s, and at the
// end one line of sums and what the programs did.
//
// Thread-safety: one thread.
#ifndef STRATALLOC_TESTS_SYSTEM_STRESS_RUN_REPORT_H_
#define STRATALLOC_TESTS_SYSTEM_STRESS_RUN_REPORT_H_

#include <cstdint>
#include <string>

#include "tests/system/stress/program.h"

namespace stratalloc {

class RunReport {
 public:
  RunReport(std::uint64_t first_seed, long programs);

  // A program has ended; `wrong` is what RunProgram returned.
  void Add(std::uint64_t seed, const std::string& wrong);
  void PrintEnd(const Tally& tally) const;
  long wrong_programs() const { return wrong_programs_; }

 private:
  double Seconds() const;

  const std::uint64_t first_seed_;
  const long programs_;
  const std::int64_t started_ns_;
  std::int64_t began_ns_, printed_ns_;  // of the program, of the last progress
  long ended_ = 0, wrong_programs_ = 0;
  // Complaints by kind.
  long violations_ = 0, lost_bytes_ = 0, leaks_ = 0, others_ = 0;
  std::int64_t slowest_ns_ = 0;
  std::uint64_t slowest_seed_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TESTS_SYSTEM_STRESS_RUN_REPORT_H_
