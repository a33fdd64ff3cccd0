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

TEST_F(SpillFileTest, ReusesExtentsAndKeepsTheQuota) {
  const auto opened = SpillFile::Open(Quota(3 * kMiB));
  ASSERT_TRUE(opened);
  SpillFile& file = **opened;
  EXPECT_EQ(file.Allocate(kMiB).value(), 0u);
  EXPECT_EQ(file.Allocate(kMiB).value(), kMiB);
  EXPECT_EQ(file.Allocate(kMiB).value(), 2 * kMiB);
  EXPECT_LE(file.file_bytes(), file.quota());
  const auto refused = file.Allocate(4096);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  EXPECT_NE(refused.error().message.find("disk_budget"), std::string::npos);
  file.Free(kMiB, kMiB);
  EXPECT_EQ(file.used(), 2 * kMiB);
  EXPECT_EQ(file.Allocate(kMiB).value(), kMiB);
  EXPECT_EQ(file.peak(), 3 * kMiB);
}

TEST_F(SpillFileTest, GivesSpaceBackWhenTheLastExtentLeaves) {
  const auto opened = SpillFile::Open(Quota(8 * kMiB));
  ASSERT_TRUE(opened);
  SpillFile& file = **opened;
  const auto offset = file.Allocate(8 * kMiB);
  ASSERT_TRUE(offset);
  EXPECT_EQ(file.file_bytes(), 8 * kMiB);
  file.Free(*offset, 8 * kMiB);
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
