// SPDX-License-Identifier: Apache-2.0
// Bytes as models have them, for tests of what compresses them.
#ifndef STRATALLOC_TIERING_IO_CODEC_DATA_TEST_H_
#define STRATALLOC_TIERING_IO_CODEC_DATA_TEST_H_

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"

namespace stratalloc {

inline constexpr const char* kDataKinds[] = {
    "random", "constant", "sparse", "fp32", "bf16", "fp16", "int64", "halves"};

// Sums of uniform numbers: as normal as weights are, and cheap.
class Normal {
 public:
  float operator()() {
    const std::uint64_t word = random_();
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      sum += static_cast<float>(word >> (16 * i) & 0xffff) / 65536.0F - 0.5F;
    }
    return sum * 0.02F;
  }

 private:
  std::mt19937_64 random_{7};
};

template <typename Number, typename Make>
void FillWith(void* data, Bytes bytes, Make make) {
  auto* to = static_cast<char*>(data);
  for (Bytes at = 0; at < bytes; at += sizeof(Number), to += sizeof(Number)) {
    const Number number = make();
    std::memcpy(to, &number, sizeof(number));
  }
}

inline void FillKind(const std::string& kind, void* data, Bytes bytes) {
  std::mt19937_64 random(11);
  Normal normal;
  const auto bits = [](float value) {
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof(word));
    return word;
  };
  if (kind == "random") {
    FillWith<std::uint64_t>(data, bytes, random);
  } else if (kind == "constant") {
    std::memset(data, 3, bytes);
  } else if (kind == "sparse") {
    FillWith<float>(data, bytes,
                    [&] { return random() % 10 != 0 ? 0.0F : normal(); });
  } else if (kind == "fp32") {
    FillWith<float>(data, bytes, normal);
  } else if (kind == "bf16") {
    FillWith<std::uint16_t>(data, bytes, [&] {
      return static_cast<std::uint16_t>(bits(normal()) >> 16);
    });
  } else if (kind == "fp16") {
    // Of normal numbers: the exponent has another bias and five bits.
    FillWith<std::uint16_t>(data, bytes, [&] {
      const std::uint32_t word = bits(normal());
      const std::uint32_t exponent = word >> 23 & 0xff;
      const std::uint32_t small = exponent < 113 ? 0 : exponent - 112;
      return static_cast<std::uint16_t>((word >> 16 & 0x8000) | small << 10 |
                                        (word >> 13 & 0x3ff));
    });
  } else if (kind == "int64") {
    FillWith<std::uint64_t>(data, bytes, [&] { return random() % 50000; });
  } else {  // halves: one that is noise, one that is not
    FillKind("random", data, bytes / 2);
    std::memset(static_cast<char*>(data) + bytes / 2, 0, bytes - bytes / 2);
  }
}

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_CODEC_DATA_TEST_H_
