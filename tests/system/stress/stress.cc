// SPDX-License-Identifier: Apache-2.0
// stress --programs N --seed S [--threads T] [--quiet]: runs N programs, with
// seeds S, S + 1, ... and ends at the first that is wrong, naming its seed.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "allocator/base/check.h"
#include "allocator/base/clock.h"
#include "allocator/base/planted.h"
#include "tests/system/stress/program.h"

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

void Print(const Tally& t, double seconds) {
  std::printf(
      "stress: %llu programs (%llu with threads, %llu with a disk, %llu with "
      "the background thread, %llu with two devices, %llu roomy) in %.1f s, "
      "0 wrong\n"
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
      (unsigned long long)t.two_devices, (unsigned long long)t.roomy, seconds,
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
  std::printf("\n");
}

int Main(int argc, char** argv) {
  // Before the simulator is used: it reads this once.
  setenv("CUDASIM_DEVICES", "2", /*overwrite=*/1);
  long programs = 300;
  ProgramOptions options;
  options.seed = 1;
  bool verbose = false;
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
    } else if (std::strcmp(argv[i], "--verbose") == 0) {
      verbose = true;
    } else {
      std::fprintf(stderr,
                   "usage: stress [--programs N] [--seed S] [--threads T] "
                   "[--devices 1|2] [--plant BUG] [--verbose]\n");
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
  const std::int64_t started = NowNs();
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
      return 1;
    }
    if (verbose || (i + 1) % 500 == 0) {
      std::fprintf(stderr, "stress: %ld of %ld\n", i + 1, programs);
    }
  }
  alarm(0);
  if (!plant.empty()) {
    std::printf("stress: planted %s: NOT caught by %ld programs\n",
                plant.c_str(), programs);
    return 1;
  }
  Print(tally, static_cast<double>(NowNs() - started) * 1e-9);
  return 0;
}

}  // namespace
}  // namespace stratalloc

int main(int argc, char** argv) { return stratalloc::Main(argc, argv); }
