// SPDX-License-Identifier: Apache-2.0
#include "tiering/host/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

namespace stratalloc {
namespace {

// The number a file holds; nullopt if there is none ("max": no limit).
std::optional<Bytes> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  Bytes value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number behind `key` in a file of "key number" lines.
std::optional<Bytes> ReadKey(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    Bytes value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

struct Names {
  const char* limit;
  const char* throttle;  // from here on the kernel slows the group; or null
  const char* usage;
  const char* droppable;  // in memory.stat
};
constexpr Names kVersion1{"/memory.limit_in_bytes", nullptr,
                          "/memory.usage_in_bytes", "total_inactive_file"};
constexpr Names kVersion2{"/memory.max", "/memory.high", "/memory.current",
                          "inactive_file"};

struct Group {
  Bytes limit = kNoMemoryLimit;
  Bytes left = kNoMemoryLimit;
};

Group Tightest(const Group& one, const Group& other) {
  return {std::min(one.limit, other.limit), std::min(one.left, other.left)};
}

Group ReadGroup(const std::string& group, const Names& names) {
  Bytes limit = ReadNumber(group + names.limit).value_or(kNoMemoryLimit);
  if (names.throttle != nullptr) {
    const auto throttle = ReadNumber(group + names.throttle);
    limit = std::min(limit, throttle.value_or(kNoMemoryLimit));
  }
  const auto usage = ReadNumber(group + names.usage);
  if (limit == kNoMemoryLimit || !usage) return {};
  const Bytes droppable =
      ReadKey(group + "/memory.stat", names.droppable).value_or(0);
  const Bytes used = *usage > droppable ? *usage - droppable : 0;
  return {limit, limit > used ? limit - used : 0};
}

// Of `path` and every group above it. Inside a container the path may be the
// host's and not exist; its root then is ours.
Group ReadGroupsAbove(const std::string& mount, std::string path,
                      const Names& names) {
  Group tightest;
  for (;;) {
    if (path == "/") path.clear();
    tightest = Tightest(tightest, ReadGroup(mount + path, names));
    if (path.empty()) return tightest;
    path.resize(std::min(path.rfind('/'), path.size() - 1));
  }
}

// Of all groups of this process.
Group ReadGroups(const std::string& root) {
  Group tightest;
  // Lines "hierarchy:controllers:path"; version 2 has no controllers.
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    std::istringstream fields(line);
    std::string hierarchy, controllers, path;
    std::getline(fields, hierarchy, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    const std::string mounts = root + "/sys/fs/cgroup";
    if (hierarchy == "0" && controllers.empty()) {
      tightest = Tightest(tightest, ReadGroupsAbove(mounts, path, kVersion2));
    } else if (("," + controllers + ",").find(",memory,") !=
               std::string::npos) {
      tightest = Tightest(tightest,
                          ReadGroupsAbove(mounts + "/memory", path, kVersion1));
    }
  }
  return tightest;
}

// What the machine says of itself under `key`.
Bytes ReadMachine(const std::string& root, const std::string& key) {
  const auto kib = ReadKey(root + "/proc/meminfo", key);
  return kib ? *kib * kKiB : kNoMemoryLimit;
}

}  // namespace

Bytes AvailableHostMemory(const std::string& root) {
  return std::min(ReadMachine(root, "MemAvailable:"), MemoryGroupsLeft(root));
}

Bytes MemoryGroupsLeft(const std::string& root) {
  return ReadGroups(root).left;
}

Bytes TotalHostMemory(const std::string& root) {
  return std::min(ReadMachine(root, "MemTotal:"), ReadGroups(root).limit);
}

}  // namespace stratalloc
