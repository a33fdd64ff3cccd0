// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/spill_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "allocator/base/check.h"

namespace stratalloc {
namespace {

constexpr Bytes kBlock = 4096;
std::vector<std::string> log_lines;

class SpillFileTest : public testing::Test {
 protected:
  SpillFileTest() {
    log_lines.clear();
    SetLogSink([](int, const char* text) { log_lines.push_back(text); });
    directory_ = testing::TempDir() + "spill" + std::to_string(getpid());
    std::filesystem::create_directory(directory_);
  }
  ~SpillFileTest() override {
    SetLogSink(nullptr);
    std::filesystem::remove_all(directory_);
  }
  SpillFile::Options Quota(Bytes quota) const {
    SpillFile::Options options;
    options.directory = directory_;
    options.quota = quota;
    return options;
  }
  // No name in the directory, no link, only we may read it.
  void ExpectUnnamedAndPrivate(const SpillFile& file) const {
    struct stat status;
    ASSERT_EQ(fstat(file.fd(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
    EXPECT_EQ(status.st_nlink, 0u);
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
    char target[PATH_MAX] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(file.fd());
    ASSERT_GT(readlink(link.c_str(), target, sizeof(target) - 1), 0);
    EXPECT_NE(std::string(target).find(" (deleted)"), std::string::npos)
        << target;
    EXPECT_NE(fcntl(file.fd(), F_GETFD) & FD_CLOEXEC, 0);
  }

  std::string directory_;
};

TEST_F(SpillFileTest, IsUnnamedAndPrivate) {
  umask(0277);  // takes the owner's write bit too: must not matter
  const auto file = SpillFile::Open(Quota(kMiB));
  umask(022);
  ASSERT_TRUE(file) << file.error().message;
  ExpectUnnamedAndPrivate(**file);
  EXPECT_GT((*file)->file_bytes(), 0u);
}

TEST_F(SpillFileTest, WithoutTmpfileItIsUnlinkedAtOnce) {
  SpillFile::Options options = Quota(kMiB);
  options.without_tmpfile = true;
  const auto file = SpillFile::Open(options);
  ASSERT_TRUE(file) << file.error().message;
  ExpectUnnamedAndPrivate(**file);
  ASSERT_EQ(log_lines.size(), 1u);
  EXPECT_NE(log_lines[0].find("no O_TMPFILE"), std::string::npos);
}

TEST_F(SpillFileTest, WithoutDirectItIsBuffered) {
  SpillFile::Options options = Quota(kMiB);
  options.without_direct = true;
  const auto file = SpillFile::Open(options);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_FALSE((*file)->direct());
  EXPECT_EQ(fcntl((*file)->fd(), F_GETFL) & O_DIRECT, 0);
  ASSERT_EQ(log_lines.size(), 1u);
  EXPECT_NE(log_lines[0].find("page cache"), std::string::npos);
}

// Holes that are too small for one thing are so together, up to four of them.
TEST_F(SpillFileTest, WhatNoHoleHoldsLiesInPieces) {
  const auto opened = SpillFile::Open(Quota(16 * kMiB));
  ASSERT_TRUE(opened);
  SpillFile& file = **opened;
  std::vector<FilePlace> places;
  for (int i = 0; i < 16; ++i) places.push_back(file.Allocate(kMiB).value());
  EXPECT_FALSE(file.HasRoom(kBlock));
  for (int i = 1; i < 16; i += 2) file.Free(places[i]);
  EXPECT_EQ(file.used(), 8 * kMiB);
  EXPECT_TRUE(file.HasRoom(4 * kMiB));
  EXPECT_FALSE(file.HasRoom(4 * kMiB + kBlock));
  const auto refused = file.Allocate(4 * kMiB + kBlock);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("in small pieces"), std::string::npos);
  EXPECT_EQ(file.used(), 8 * kMiB);

  const auto wide = file.Allocate(3 * kMiB + kBlock);
  ASSERT_TRUE(wide) << wide.error().message;
  ASSERT_EQ(wide->count, 4);
  Bytes sum = 0;
  for (int i = 0; i < wide->count; ++i) {
    const FilePlace::Piece& piece = wide->pieces[i];
    EXPECT_EQ(piece.offset / kMiB % 2, 1u);
    EXPECT_LE(piece.offset % kMiB + piece.bytes, kMiB);
    EXPECT_EQ(piece.bytes % kBlock, 0u);
    sum += piece.bytes;
  }
  EXPECT_EQ(sum, 3 * kMiB + kBlock);
  EXPECT_EQ(file.used(), 11 * kMiB + kBlock);
  file.Free(*wide);
  EXPECT_EQ(file.used(), 8 * kMiB);
  EXPECT_TRUE(file.HasRoom(4 * kMiB));
}

TEST_F(SpillFileTest, ReusesExtentsAndKeepsTheQuota) {
  const auto opened = SpillFile::Open(Quota(3 * kMiB));
  ASSERT_TRUE(opened);
  SpillFile& file = **opened;
  EXPECT_EQ(file.Allocate(kMiB)->offset(), 0u);
  const auto second = file.Allocate(kMiB);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->offset(), kMiB);
  EXPECT_EQ(file.Allocate(kMiB)->offset(), 2 * kMiB);
  EXPECT_LE(file.file_bytes(), file.quota());
  const auto refused = file.Allocate(4096);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  EXPECT_NE(refused.error().message.find("disk_budget"), std::string::npos);
  file.Free(*second);
  EXPECT_EQ(file.used(), 2 * kMiB);
  EXPECT_EQ(file.Allocate(kMiB)->offset(), kMiB);
  EXPECT_EQ(file.peak(), 3 * kMiB);
}

TEST_F(SpillFileTest, GivesSpaceBackWhenTheLastExtentLeaves) {
  const auto opened = SpillFile::Open(Quota(8 * kMiB));
  ASSERT_TRUE(opened);
  SpillFile& file = **opened;
  const auto place = file.Allocate(8 * kMiB);
  ASSERT_TRUE(place);
  EXPECT_EQ(file.file_bytes(), 8 * kMiB);
  file.Free(*place);
  struct stat status;
  ASSERT_EQ(fstat(file.fd(), &status), 0);
  EXPECT_EQ(status.st_size, 4096);
}

TEST_F(SpillFileTest, NamesADirectoryThatDoesNotExist) {
  SpillFile::Options options = Quota(kMiB);
  options.directory = directory_ + "/absent";
  const auto file = SpillFile::Open(options);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kIo);
  EXPECT_NE(file.error().message.find(options.directory), std::string::npos);
  EXPECT_NE(file.error().message.find("disk_dir"), std::string::npos);
}

TEST_F(SpillFileTest, SaysWhenTheDirectoryIsMemory) {
  SpillFile::Options options = Quota(kMiB);
  options.directory = "/dev/shm";
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  const auto file = SpillFile::Open(options);
  ASSERT_TRUE(file) << file.error().message;
  bool said = false;
  for (const std::string& line : log_lines) {
    said = said || line.find("tmpfs") != std::string::npos;
  }
  EXPECT_TRUE(said);
}

}  // namespace
}  // namespace stratalloc
