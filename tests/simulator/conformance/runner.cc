// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/conformance/runner.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {
namespace {

constexpr unsigned kSecondsPerChild = 120;

int child_pipe = -1;

struct Line {
  std::string id;  // area.case.name
  std::string area;
  std::string kind;  // documented, believed, skip, died
  bool ok = false;
  bool known = false;  // ok, with a driver's known answer
  std::string expected;
  std::string actual;
};

std::vector<std::string> Split(const std::string& line) {
  std::vector<std::string> parts(1);
  for (const char c : line) {
    if (c == '\t') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string Quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out + '"';
}

class Results {
 public:
  explicit Results(const Options& options) : options_(options) {}

  void Take(const std::string& area, const std::string& text) {
    const std::vector<std::string> parts = Split(text);
    if (parts[0] == "case" && parts.size() == 2) {
      case_ = parts[1];
      return;
    }
    if (parts[0] == "fact" && parts.size() == 3) {
      facts_[parts[1]] = parts[2];
      return;
    }
    if (parts.size() != 5) {
      Died(area, "wrote a line that is none: " + text);
      return;
    }
    const bool known = parts[1] == "known" && !options_.strict;
    Add({area + "." + case_ + "." + parts[2], area, parts[0],
         parts[1] == "ok" || known, known, parts[3], parts[4]});
  }
  void Died(const std::string& area, const std::string& how) {
    Add({area + "." + (case_.empty() ? "start" : case_), area, "died", false,
         false, "an end", how});
  }
  void Begin() { case_.clear(); }

  // Prints the table and writes the JSON; what main() returns.
  int Finish() {
    std::printf("\n%-16s %10s %8s %10s %8s %8s %7s\n", "area", "documented",
                "differ", "unverified", "differ", "known", "skipped");
    Counts all;
    for (const auto& [area, counts] : counts_) {
      Print(area, counts);
      all.Add(counts);
    }
    Print("all", all);
    const bool ok = all.documented_differ == 0 && all.died == 0 &&
                    (!options_.strict || all.believed_differ == 0) &&
                    all.documented > 0;
    if (!options_.json.empty() && !WriteJson(all, ok)) return 2;
    return ok ? 0 : 1;
  }

 private:
  struct Counts {
    long documented = 0;
    long documented_differ = 0;
    long believed = 0;
    long believed_differ = 0;
    long known = 0;
    long skipped = 0;
    long died = 0;

    void Add(const Counts& other) {
      documented += other.documented;
      documented_differ += other.documented_differ;
      believed += other.believed;
      believed_differ += other.believed_differ;
      known += other.known;
      skipped += other.skipped;
      died += other.died;
    }
    std::string Json() const {
      return "{\"documented\": " + std::to_string(documented) +
             ", \"documented_differ\": " + std::to_string(documented_differ) +
             ", \"unverified\": " + std::to_string(believed) +
             ", \"unverified_differ\": " + std::to_string(believed_differ) +
             ", \"known\": " + std::to_string(known) +
             ", \"skipped\": " + std::to_string(skipped) +
             ", \"died\": " + std::to_string(died) + "}";
    }
  };

  static void Print(const std::string& area, const Counts& counts) {
    std::printf("%-16s %10ld %8ld %10ld %8ld %8ld %7ld%s\n", area.c_str(),
                counts.documented, counts.documented_differ, counts.believed,
                counts.believed_differ, counts.known, counts.skipped,
                counts.died > 0 ? "  DIED" : "");
  }

  void Add(const Line& line) {
    Counts& counts = counts_[line.area];
    const char* verdict = line.ok ? "ok" : "DIFFERS";
    if (line.kind == "documented") {
      ++counts.documented;
      if (!line.ok) ++counts.documented_differ;
    } else if (line.kind == "believed") {
      ++counts.believed;
      if (!line.ok) ++counts.believed_differ;
      if (line.known) ++counts.known;
      verdict = line.known ? "ok (known)"
                : line.ok  ? "ok (unverified)"
                           : "DIFFERS (unverified)";
    } else if (line.kind == "skip") {
      ++counts.skipped;
      verdict = "skipped";
    } else {
      ++counts.died;
      verdict = "DIED";
    }
    if (!options_.quiet || !line.ok) {
      std::printf("%-20s %s", verdict, line.id.c_str());
      if (line.kind == "skip" || line.kind == "died") {
        std::printf(": %s", line.actual.c_str());
      } else if (!line.ok) {
        std::printf(": expected %s, got %s", line.expected.c_str(),
                    line.actual.c_str());
      }
      std::printf("\n");
      std::fflush(stdout);
    }
    lines_.push_back(line);
  }

  bool WriteJson(const Counts& all, bool ok) const {
    std::FILE* const file = std::fopen(options_.json.c_str(), "w");
    if (file == nullptr) {
      std::perror(options_.json.c_str());
      return false;
    }
    std::fprintf(file, "{\n \"ok\": %s,\n \"facts\": {", ok ? "true" : "false");
    const char* comma = "";
    for (const auto& [name, value] : facts_) {
      std::fprintf(file, "%s\n  %s: %s", comma, Quote(name).c_str(),
                   Quote(value).c_str());
      comma = ",";
    }
    std::fprintf(file, "\n },\n \"all\": %s,\n \"areas\": {",
                 all.Json().c_str());
    comma = "";
    for (const auto& [area, counts] : counts_) {
      std::fprintf(file, "%s\n  %s: %s", comma, Quote(area).c_str(),
                   counts.Json().c_str());
      comma = ",";
    }
    std::fprintf(file, "\n },\n \"checks\": [");
    comma = "";
    for (const Line& line : lines_) {
      std::fprintf(file,
                   "%s\n  {\"id\": %s, \"kind\": %s, \"ok\": %s, "
                   "\"known\": %s, \"expected\": %s, \"actual\": %s}",
                   comma, Quote(line.id).c_str(), Quote(line.kind).c_str(),
                   line.ok ? "true" : "false", line.known ? "true" : "false",
                   Quote(line.expected).c_str(), Quote(line.actual).c_str());
      comma = ",";
    }
    std::fprintf(file, "\n ]\n}\n");
    return std::fclose(file) == 0;
  }

  const Options& options_;
  std::string case_;
  std::vector<Line> lines_;
  std::map<std::string, Counts> counts_;
  std::map<std::string, std::string> facts_;
};

void RunInChild(const Options& options, const std::string& program,
                const std::string& area, const std::string& what,
                Results* results) {
  int ends[2];
  if (pipe(ends) != 0) {
    std::perror("pipe");
    std::exit(2);
  }
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    alarm(kSecondsPerChild);  // a call that never returns ends the child
    const std::string number = std::to_string(ends[1]);
    execl(program.c_str(), program.c_str(), "--cuda", options.cuda.c_str(),
          "--cudart", options.cudart.c_str(), "--child", what.c_str(), "--pipe",
          number.c_str(), static_cast<char*>(nullptr));
    std::_Exit(127);
  }
  close(ends[1]);
  results->Begin();
  std::string pending;
  char bytes[4096];
  ssize_t got = 0;
  while ((got = read(ends[0], bytes, sizeof(bytes))) > 0) {
    pending.append(bytes, static_cast<size_t>(got));
    size_t end = 0;
    while ((end = pending.find('\n')) != std::string::npos) {
      results->Take(area, pending.substr(0, end));
      pending.erase(0, end + 1);
    }
  }
  close(ends[0]);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    results->Died(area, "the process could not be started");
  } else if (WIFSIGNALED(status)) {
    results->Died(
        area, WTERMSIG(status) == SIGALRM
                  ? "nothing came back in time"
                  : std::string("signal ") + std::to_string(WTERMSIG(status)));
  } else if (WEXITSTATUS(status) != 0) {
    results->Died(area, "exit " + std::to_string(WEXITSTATUS(status)));
  }
}

void SayFacts() {
  int version = 0;
  if (api.cudaRuntimeGetVersion(&version) == cudaSuccess) {
    WriteLine("fact\truntime\t" + std::to_string(version));
  }
  if (api.cudaDriverGetVersion(&version) == cudaSuccess) {
    WriteLine("fact\tdriver\t" + std::to_string(version));
  }
  cudaDeviceProp properties;
  if (api.cudaGetDeviceProperties(&properties, 0) == cudaSuccess) {
    WriteLine(std::string("fact\tdevice\t") + properties.name);
  }
  int devices = 0;
  if (api.cudaGetDeviceCount(&devices) == cudaSuccess) {
    WriteLine("fact\tdevices\t" + std::to_string(devices));
  }
}

}  // namespace

void WriteLine(const std::string& line) {
  const std::string whole = line + "\n";
  if (write(child_pipe, whole.data(), whole.size()) !=
      static_cast<ssize_t>(whole.size())) {
    std::_Exit(3);
  }
}

int RunChild(const Options& options) {
  child_pipe = options.pipe;
  for (const std::string& missing : LoadApi(options.cuda, options.cudart)) {
    std::fprintf(stderr, "conformance: not found: %s\n", missing.c_str());
    WriteLine("case\tsymbols");
    WriteLine("documented\tdiffers\t" + missing + "\tfound\tnot found");
  }
  if (api.cudaGetErrorName == nullptr) return 2;
  if (options.child == "facts") {
    SayFacts();
    return 0;
  }
  for (const Case& each : Cases()) {
    const bool wanted = each.own_process
                            ? options.child == each.area + "." + each.name
                            : options.child == each.area;
    if (!wanted) continue;
    WriteLine("case\t" + each.name);
    if (!each.own_process) (void)api.cudaGetLastError();
    each.run();
  }
  return 0;
}

int RunAll(const Options& options, const std::string& program) {
  Results results(options);
  RunInChild(options, program, "facts", "facts", &results);
  std::vector<std::string> areas;
  for (const Case& each : Cases()) {
    if (!options.areas.empty() && options.areas.count(each.area) == 0) continue;
    if (options.without.count(each.area) != 0) continue;
    if (std::find(areas.begin(), areas.end(), each.area) == areas.end()) {
      areas.push_back(each.area);
    }
  }
  for (const std::string& area : areas) {
    RunInChild(options, program, area, area, &results);
    for (const Case& each : Cases()) {
      if (each.area != area || !each.own_process) continue;
      RunInChild(options, program, area, area + "." + each.name, &results);
    }
  }
  return results.Finish();
}

}  // namespace conformance
