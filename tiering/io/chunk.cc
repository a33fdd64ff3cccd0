// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/chunk.h"

#include <xxhash.h>

#include <cstddef>
#include <cstring>

#include "allocator/base/host_time.h"

namespace stratalloc {
namespace {

std::uint64_t HeaderChecksum(const ChunkHeader& header) {
  return XXH3_64bits(&header, offsetof(ChunkHeader, header_checksum));
}

std::string Differs(const char* what, std::uint64_t found,
                    std::uint64_t expected) {
  return std::string(what) + " " + std::to_string(found) + " instead of " +
         std::to_string(expected);
}

}  // namespace

std::uint64_t PayloadChecksum(const void* data, Bytes bytes) {
  NoteChecksummed(bytes);
  return XXH3_64bits(data, bytes);
}

void WriteHeader(void* block, ChunkHeader header) {
  header.magic = kChunkMagic;
  header.header_checksum = HeaderChecksum(header);
  std::memset(block, 0, kIoBlock);
  std::memcpy(block, &header, sizeof(header));
}

std::string CompareHeader(const void* block, const ChunkHeader& expected) {
  ChunkHeader found;
  std::memcpy(&found, block, sizeof(found));
  if (found.magic != kChunkMagic) return "there is no chunk header";
  if (found.header_checksum != HeaderChecksum(found)) {
    return "the chunk header is damaged";
  }
  if (found.identity != expected.identity) {
    return Differs("it holds identity", found.identity, expected.identity);
  }
  if (found.generation != expected.generation) {
    return Differs("it holds generation", found.generation,
                   expected.generation);
  }
  if (found.bytes != expected.bytes) {
    return Differs("it holds a length of", found.bytes, expected.bytes);
  }
  if (found.stored != expected.stored) {
    return Differs("it is stored in", found.stored, expected.stored);
  }
  if (found.codec != expected.codec) {
    return Differs("its codec is", found.codec, expected.codec);
  }
  if (found.width != expected.width) {
    return Differs("its elements have a width of", found.width, expected.width);
  }
  if (found.checksum != expected.checksum) {
    return Differs("its header has checksum", found.checksum,
                   expected.checksum);
  }
  if (found.payload_checksum != expected.payload_checksum) {
    return Differs("its header has a payload of checksum",
                   found.payload_checksum, expected.payload_checksum);
  }
  return "";
}

}  // namespace stratalloc
