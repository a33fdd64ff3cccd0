// SPDX-License-Identifier: Apache-2.0
// stress --programs N --seed S [--threads T] [--keep-going]: runs N programs,
// with seeds S, S + 1, ... and ends at the first that is wrong, naming its
// seed.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "tests/system/stress/program.h"
#include "tests/system/stress/run_report.h"

namespace stratalloc {
namespace {

// A program takes milliseconds, under ThreadSanitizer tenths of a second.
constexpr unsigned kHungSeconds = 180;

volatile unsigned long long running_seed = 0;

void OnAlarm(int) {
  std::fprintf(stderr, "stress: seed %llu hangs\n", running_seed);
  abort();  // a core and a stack say where
}

void OnEnd(int signal_number) {
  char text[64];
  const int n = std::snprintf(text, sizeof(text), "stress: seed %llu ended\n",
                              running_seed);
  if (write(2, text, static_cast<std::size_t>(n)) < 0) _exit(3);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

int Main(int argc, char** argv) {
  // Before the simulator is used: it reads this once.
  setenv("CUDASIM_DEVICES", "2", /*overwrite=*/1);
  long programs = 300;
  ProgramOptions options;
  options.seed = 1;
  bool verbose = false, keeps_going = false;
  std::string plant;
  for (int i = 1; i < argc; ++i) {
    const auto is = [&](const char* name) {
      return std::strcmp(argv[i], name) == 0 && i + 1 < argc;
    };
    if (is("--programs")) {
      programs = std::atol(argv[++i]);
    } else if (is("--seed")) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (is("--threads")) {
      options.threads = std::atoi(argv[++i]);
    } else if (is("--devices")) {
      options.devices = std::atoi(argv[++i]);
    } else if (is("--plant")) {
      plant = argv[++i];
    } else if (std::strcmp(argv[i], "--keep-going") == 0) {
      keeps_going = true;
    } else if (std::strcmp(argv[i], "--verbose") == 0) {
      verbose = true;
    } else {
      std::fprintf(
          stderr,
          "usage: stress [--programs N] [--seed S] [--threads T] "
          "[--devices 1|2] [--plant BUG] [--keep-going] [--verbose]\n");
      return 2;
    }
  }
  if (!plant.empty() && !PlantBug(plant.c_str())) {
    std::fprintf(stderr, "stress: this build has no bug '%s' to plant\n",
                 plant.c_str());
    return 2;
  }
  if (!verbose) SetLogSink([](int, const char*) {});
  signal(SIGALRM, OnAlarm);
  signal(SIGABRT, OnEnd);
  signal(SIGSEGV, OnEnd);
  Tally tally;
  RunReport report(options.seed, programs);
  for (long i = 0; i < programs; ++i, ++options.seed) {
    running_seed = options.seed;
    alarm(kHungSeconds);
    const std::string wrong = RunProgram(options, &tally);
    if (!plant.empty() && !wrong.empty()) {
      std::printf("stress: planted %s: caught by program %ld:\n%s",
                  plant.c_str(), i + 1, wrong.c_str());
      return 0;
    }
    if (!wrong.empty()) {
      std::printf("stress: seed %llu is wrong:\n%s",
                  (unsigned long long)options.seed, wrong.c_str());
      std::fflush(stdout);
      if (!keeps_going) return 1;
    }
    report.Add(options.seed, wrong);
  }
  alarm(0);
  if (!plant.empty()) {
    std::printf("stress: planted %s: NOT caught by %ld programs\n",
                plant.c_str(), programs);
    return 1;
  }
  report.PrintEnd(tally);
  return report.wrong_programs() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace stratalloc

int main(int argc, char** argv) { return stratalloc::Main(argc, argv); }
