// SPDX-License-Identifier: Apache-2.0
// A recording as a file, version 1: eight bytes "STRATREC", the version as four
// bytes and four of zeros, then sections until one of tag "END.". A section is
// its tag (4 bytes), the CRC-32 of what it holds (4), the length of that in
// bytes (8), and that, filled up to 8 bytes. All little endian.
//
//   HEAD  one JSON object: names, devices, clocks, what was lost
//   EVNT  events, 48 bytes each (file_event.h)
//
// Sections of another tag are for later versions: who reads skips them.
//
// Thread-safety: any thread. Failure: what the file system says, with the path;
// what was at the path before is still there then: the file is written beside
// it and takes its place when it is whole. Readable by its owner alone.
#ifndef STRATALLOC_TELEMETRY_RECORDING_RECORDING_FILE_H_
#define STRATALLOC_TELEMETRY_RECORDING_RECORDING_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "allocator/base/result.h"
#include "telemetry/recording/file_event.h"

namespace stratalloc {

inline constexpr std::string_view kRecordingMagic = "STRATREC";
inline constexpr std::uint32_t kRecordingVersion = 1;

// `head`: JSON.
Status WriteRecording(const std::string& path, std::string_view head,
                      std::span<const FileEvent> events);

}  // namespace stratalloc

#endif  // STRATALLOC_TELEMETRY_RECORDING_RECORDING_FILE_H_
