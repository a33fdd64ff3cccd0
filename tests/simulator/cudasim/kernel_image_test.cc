// SPDX-License-Identifier: Apache-2.0
//
// What is read of images of device code, and that what is none is left alone.

#include "tests/simulator/cudasim/kernel_image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/cubin_builder.h"

namespace cudasim {
namespace {

std::vector<size_t> Offsets(const KernelImage& image, const char* kernel) {
  std::vector<size_t> offsets;
  for (const KernelParameter& each : image.kernels.at(kernel)) {
    offsets.push_back(each.offset);
  }
  return offsets;
}

std::string TwoKernels() {
  return CubinBuilder()
      .Kernel("none", {})
      .Kernel("four", {8, 4, 8, 128})
      .Section(".nv.info", "something else")
      .Build();
}

TEST(KernelImage, ParametersComeInTheirOrder) {
  const std::string cubin = TwoKernels();
  for (const size_t bytes : {size_t{0}, cubin.size()}) {
    const KernelImage image = ReadKernelImage(cubin.data(), bytes);
    ASSERT_TRUE(image.known);
    ASSERT_EQ(image.kernels.size(), 2u);
    EXPECT_TRUE(image.kernels.at("none").empty());
    EXPECT_EQ(Offsets(image, "four"), (std::vector<size_t>{0, 8, 16, 128}));
    EXPECT_EQ(image.kernels.at("four")[1].bytes, 4u);
    EXPECT_EQ(image.kernels.at("four")[3].bytes, 128u);
  }
}

TEST(KernelImage, WhatIsNoCubinSaysNothing) {
  EXPECT_FALSE(ReadKernelImage("").known);
  EXPECT_FALSE(ReadKernelImage("\177E").known);
  EXPECT_FALSE(ReadKernelImage(".version 8.7\n.target sm_90").known);
  std::string other = TwoKernels();
  other[18] = 62;  // a program for x86-64
  EXPECT_FALSE(ReadKernelImage(other.data(), other.size()).known);
}

TEST(KernelImage, ACutFileSaysNothingAndNothingBehindItIsRead) {
  const std::string cubin = TwoKernels();
  for (size_t bytes = 1; bytes < cubin.size(); ++bytes) {
    const std::vector<char> cut(cubin.begin(), cubin.begin() + bytes);
    EXPECT_FALSE(ReadKernelImage(cut.data(), cut.size()).known) << bytes;
  }
}

TEST(KernelImage, AParameterThatIsMissingMakesItUnknown) {
  std::string cubin = CubinBuilder().Kernel("two", {8, 8}).Build();
  // The first attribute of a parameter becomes another one.
  const std::string attribute("\x04\x17\x0c\x00", 4);
  const size_t at = cubin.find(attribute);
  ASSERT_NE(at, std::string::npos);
  cubin.replace(cubin.rfind(attribute) + 1, 1, "\x18");
  EXPECT_FALSE(ReadKernelImage(cubin.data(), cubin.size()).known);
}

// A fat binary with one entry, as fatbinary(1) writes it.
std::string Fat(const std::string& cubin, uint64_t flags) {
  std::string text;
  const auto add = [&text](auto value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(uint32_t{0xba55ed50});
  add(uint16_t{1});
  add(uint16_t{16});
  add(uint64_t{64 + cubin.size()});
  add(uint16_t{2});  // ELF
  add(uint16_t{0x101});
  add(uint32_t{64});
  add(uint64_t{cubin.size()});
  add(uint64_t{0});
  add(uint32_t{0});
  add(uint32_t{90});
  add(uint64_t{64});
  add(flags);
  add(uint64_t{0});
  add(uint64_t{0});
  return text + cubin;
}

TEST(KernelImage, AFatBinaryRunsWhereItHasCodeFor) {
  const std::string fat = Fat(TwoKernels(), 0x11);  // a cubin for 9.0
  const KernelImage image = ReadKernelImage(fat.data());
  EXPECT_EQ(image.cubins, std::vector<int>{90});
  EXPECT_EQ(image.oldest_ptx, 0);
  EXPECT_TRUE(image.RunsOn(9, 0));
  EXPECT_FALSE(image.RunsOn(8, 9));
  EXPECT_FALSE(image.RunsOn(10, 0));
  std::string ptx = fat;
  ptx[16] = 1;  // PTX, which newer ones compile
  const KernelImage compiled = ReadKernelImage(ptx.data());
  EXPECT_EQ(compiled.oldest_ptx, 90);
  EXPECT_TRUE(compiled.RunsOn(12, 0));
  EXPECT_FALSE(compiled.RunsOn(8, 9));
  // Of a plain cubin nothing says it here.
  const std::string cubin = TwoKernels();
  EXPECT_TRUE(ReadKernelImage(cubin.data(), cubin.size()).RunsOn(7, 5));
}

TEST(KernelImage, FatBinariesAndTheirWrappers) {
  const std::string cubin = TwoKernels();
  const std::string plain = Fat(cubin, 0x11);
  struct {
    uint32_t magic = 0x466243b1;
    uint32_t version = 1;
    const void* data = nullptr;
    void* name = nullptr;
  } wrapper;
  wrapper.data = plain.data();
  for (const void* image : {static_cast<const void*>(plain.data()),
                            static_cast<const void*>(&wrapper)}) {
    EXPECT_TRUE(ReadKernelImage(image).known);
    EXPECT_EQ(ReadKernelImage(image).kernels.size(), 2u);
  }
  // What is compressed is not understood.
  const std::string compressed = Fat(cubin, 0x2011);
  EXPECT_FALSE(ReadKernelImage(compressed.data()).known);
}

}  // namespace
}  // namespace cudasim
