// SPDX-License-Identifier: Apache-2.0
#include "telemetry/recording/recording_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace stratalloc {
namespace {

struct SectionHead {
  char tag[4];
  std::uint32_t check;
  std::uint64_t bytes;
};
static_assert(sizeof(SectionHead) == 16);

std::uint32_t CheckOf(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Written whole, or errno says why not.
bool WriteAll(int descriptor, const void* from, std::size_t bytes) {
  const char* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t written = write(descriptor, at, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

bool WriteSection(int descriptor, const char* tag, std::string_view bytes) {
  SectionHead head{};
  std::memcpy(head.tag, tag, sizeof(head.tag));
  head.check = CheckOf(bytes);
  head.bytes = bytes.size();
  constexpr char kNothing[8] = {};
  const std::size_t filling = (8 - bytes.size() % 8) % 8;
  return WriteAll(descriptor, &head, sizeof(head)) &&
         WriteAll(descriptor, bytes.data(), bytes.size()) &&
         WriteAll(descriptor, kNothing, filling);
}

bool WriteTo(int descriptor, std::string_view head,
             std::span<const FileEvent> events) {
  const std::uint32_t version[2] = {kRecordingVersion, 0};
  return WriteAll(descriptor, kRecordingMagic.data(), kRecordingMagic.size()) &&
         WriteAll(descriptor, version, sizeof(version)) &&
         WriteSection(descriptor, "HEAD", head) &&
         WriteSection(descriptor, "EVNT",
                      {reinterpret_cast<const char*>(events.data()),
                       events.size_bytes()}) &&
         WriteSection(descriptor, "END.", {});
}

// Where a link points, so that it stays one.
std::string Resolved(const std::string& path) {
  char* const found = realpath(path.c_str(), nullptr);
  if (found == nullptr) return path;
  std::string resolved = found;
  std::free(found);
  return resolved;
}

}  // namespace

Status WriteRecording(const std::string& given, std::string_view head,
                      std::span<const FileEvent> events) {
  const std::string path = Resolved(given);
  struct stat there {};
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return Fail(ErrorCode::kInvalidArgument,
                "the recording cannot be written to " + path +
                    ": it is no regular file, and would be one afterwards; "
                    "give the name of a file");
  }
  const std::string beside = path + "." + std::to_string(getpid()) + ".tmp";
  const auto failed = [&](int error) {
    unlink(beside.c_str());
    return Fail(ErrorCode::kIo, "the recording cannot be written to " + path +
                                    ": " + std::strerror(error) +
                                    "; choose a place that can be written and "
                                    "has room");
  };
  const int descriptor =
      open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
           S_IRUSR | S_IWUSR);
  if (descriptor < 0) {
    return Fail(ErrorCode::kIo,
                "the recording cannot be written to " + path + ": " +
                    std::strerror(errno) +
                    "; choose a place that can be written and has room");
  }
  const bool written = WriteTo(descriptor, head, events);
  const int error = errno;
  if (close(descriptor) != 0 && written) return failed(errno);
  if (!written) return failed(error);
  if (std::rename(beside.c_str(), path.c_str()) != 0) return failed(errno);
  return {};
}

}  // namespace stratalloc
