// Tests how lines of the log reach a descriptor that may block or refuse them.
#include "server/observability/line_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/observability/rate_limit.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::ElementsAre;

std::string Report(uint64_t lines) { return absl::StrCat("dropped ", lines, "\n"); }

// The two ends of a pipe or of a pair of sockets.
struct Ends {
  static Ends OfPipe(int flags = 0) {
    std::array<int, 2> fds;
    AFT_CHECK(pipe2(fds.data(), O_CLOEXEC | flags) == 0);
    return {fds[0], fds[1]};
  }
  // The ends of a pair of sockets: each read returns exactly one write.
  static Ends OfRecords() {
    std::array<int, 2> fds;
    AFT_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) == 0);
    return {fds[0], fds[1]};
  }
  ~Ends() {
    close(out);
    close(in);
  }

  // Returns the bytes of one read.
  std::string Read() const {
    std::string text(1 << 16, '\0');
    const ssize_t size = read(out, text.data(), text.size());
    AFT_CHECK(size > 0);
    text.resize(static_cast<size_t>(size));
    return text;
  }
  std::string ReadLine() {
    size_t end = 0;
    while ((end = unread.find('\n')) == std::string::npos) unread += Read();
    const std::string line = unread.substr(0, end);
    unread.erase(0, end + 1);
    return line;
  }

  int out;
  int in;
  std::string unread = "";
};

TEST(LineWriterTest, WritesInOrderAndFlushWaitsForIt) {
  Ends pipe = Ends::OfPipe();
  LineWriter writer(pipe.in, 1 << 20, Report);
  for (int i = 0; i < 1000; ++i) writer.Add(absl::StrCat(i, "\n"));
  EXPECT_TRUE(writer.Flush(hours(1)));
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(pipe.ReadLine(), absl::StrCat(i));
  EXPECT_EQ(writer.dropped(), 0);
}

TEST(LineWriterTest, DestructionWaitsUntilAllLinesAreWritten) {
  Ends pipe = Ends::OfPipe();
  { LineWriter(pipe.in, 100, Report).Add("last\n"); }
  EXPECT_EQ(pipe.ReadLine(), "last");
}

TEST(LineWriterTest, WithoutAReaderLinesAreDroppedCountedAndReported) {
  constexpr uint64_t kLines = 20'000;
  Ends pipe = Ends::OfPipe();
  AFT_CHECK(fcntl(pipe.in, F_SETPIPE_SZ, PIPE_BUF) > 0);
  LineWriter writer(pipe.in, 2 * PIPE_BUF, Report);  // more than fits into the pipe
  for (uint64_t i = 0; i < kLines; ++i) writer.Add(absl::StrCat(i, "\n"));  // does not block
  EXPECT_GT(writer.dropped(), kLines / 2);
  EXPECT_FALSE(writer.Flush(milliseconds(1)));

  uint64_t kept = 0;
  uint64_t told = 0;
  int64_t last = -1;
  while (kept + told < kLines) {
    const std::string line = pipe.ReadLine();
    absl::string_view rest = line;
    int64_t number = 0;
    const bool report = absl::ConsumePrefix(&rest, "dropped ");
    ASSERT_TRUE(absl::SimpleAtoi(rest, &number)) << line;
    if (report) {
      told += static_cast<uint64_t>(number);
    } else {
      EXPECT_GT(number, last);
      last = number;
      ++kept;
    }
  }
  EXPECT_EQ(kept + told, kLines);
  EXPECT_EQ(told, writer.dropped());
  EXPECT_TRUE(writer.Flush(hours(1)));
  writer.Add("again\n");
  EXPECT_EQ(pipe.ReadLine(), "again");
}

TEST(LineWriterTest, ATextThatDoesNotFitIsDroppedAsAWhole) {
  Ends pipe = Ends::OfPipe();
  LineWriter writer(pipe.in, 10, Report);
  writer.Add("1\n2\n3\n4\n5\n6\n");  // 12 bytes
  EXPECT_EQ(writer.dropped(), 6);
  writer.Add("123456789\n");
  EXPECT_EQ(pipe.ReadLine(), "123456789");
  EXPECT_EQ(pipe.ReadLine(), "dropped 6");
}

TEST(LineWriterTest, AReportWithoutMemoryFollowsALaterLine) {
  Ends pipe = Ends::OfPipe();
  int reports = 0;
  const auto report = [&](uint64_t lines) {
    if (++reports == 1) throw std::bad_alloc();
    return Report(lines);
  };
  LineWriter writer(pipe.in, 100, report);
  writer.Drop();
  writer.Drop();
  for (const char* line : {"a", "b"}) {
    writer.Add(absl::StrCat(line, "\n"));
    EXPECT_EQ(pipe.ReadLine(), line);
    EXPECT_TRUE(writer.Flush(hours(1)));
  }
  EXPECT_EQ(pipe.ReadLine(), "dropped 2");
  EXPECT_EQ(writer.dropped(), 2);
}

TEST(LineWriterTest, RefusedLinesAreReportedOnceTheDescriptorAcceptsLines) {
  Ends pipe = Ends::OfPipe();
  const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  LineWriter writer(fd, 1000, Report);
  for (int i = 1; i <= 3; ++i) {
    writer.Add("a\nb\n");
    EXPECT_TRUE(writer.Flush(hours(1)));
    EXPECT_EQ(writer.dropped(), 2 * i);
  }
  ASSERT_GE(dup2(pipe.in, fd), 0);
  writer.Add("c\n");
  EXPECT_EQ(pipe.ReadLine(), "c");
  EXPECT_EQ(pipe.ReadLine(), "dropped 6");
  EXPECT_EQ(writer.dropped(), 6);
  close(fd);
}

TEST(LineWriterTest, AFullDiskCutsNoLineExceptTheLastOneBefore) {
  const TempFolder folder;
  const int fd = open(folder.File("log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  LineWriter writer(fd, 1000, Report);
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 15;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  writer.Add("aaaaaaaaa\nbbbbbbbbb\n");
  writer.Flush(hours(1));
  const uint64_t dropped = writer.dropped();
  writer.Add("ccccccccc\n");
  writer.Flush(hours(1));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(dropped, 1);
  writer.Add("d\n");
  EXPECT_TRUE(writer.Flush(hours(1)));
  EXPECT_EQ(ReadBytes(folder.File("log")), "aaaaaaaaa\nbbbbb\nd\ndropped 2\n");
  EXPECT_EQ(writer.dropped(), 2);
  close(fd);
}

TEST(LineWriterTest, WaitsForANonBlockingDescriptor) {
  constexpr int kLines = 2000;
  Ends pipe = Ends::OfPipe(O_NONBLOCK);
  AFT_CHECK(fcntl(pipe.in, F_SETPIPE_SZ, PIPE_BUF) > 0);
  AFT_CHECK(fcntl(pipe.out, F_SETFL, 0) == 0);  // reads of the test block
  LineWriter writer(pipe.in, 1 << 20, Report);
  for (int i = 0; i < kLines; ++i) writer.Add(absl::StrCat(i, "\n"));
  for (int i = 0; i < kLines; ++i) ASSERT_EQ(pipe.ReadLine(), absl::StrCat(i));
  EXPECT_EQ(writer.dropped(), 0);
}

TEST(LineWriterTest, LinesUpToPipeBufAreWrittenWholeAndTogether) {
  Ends records = Ends::OfRecords();
  LineWriter writer(records.in, 1 << 20, Report);
  const auto line = [](size_t size) { return std::string(size - 1, 'x') + "\n"; };
  writer.Add(line(3000) + line(3000) + line(PIPE_BUF) + line(PIPE_BUF + 1) + "a\nb\n");
  std::vector<std::string> writes;
  for (int i = 0; i < 5; ++i) writes.push_back(records.Read());
  EXPECT_THAT(writes, ElementsAre(line(3000), line(3000), line(PIPE_BUF),
                                  std::string(PIPE_BUF, 'x'), "\na\nb\n"));
}

TEST(LineWriterTest, ThreadsMayAddAtOnce) {
  Ends pipe = Ends::OfPipe();
  LineWriter writer(pipe.in, 1 << 20, Report);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&writer] {
      for (int i = 0; i < 500; ++i) writer.Add("line\n");
    });
  }
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(pipe.ReadLine(), "line");
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(writer.dropped(), 0);
}

TEST(RateLimitTest, LimitsEventsPerSecondAndReportsTheSuppressedOnes) {
  const std::chrono::steady_clock::time_point start(hours(1));
  RateLimit limit(2);
  EXPECT_EQ(limit.Pass(start), 0);
  EXPECT_EQ(limit.Pass(start + milliseconds(500)), 0);
  EXPECT_EQ(limit.Pass(start + milliseconds(500)), std::nullopt);
  EXPECT_EQ(limit.Pass(start + milliseconds(999)), std::nullopt);
  EXPECT_EQ(limit.Pass(start + milliseconds(1000)), 2);
  EXPECT_EQ(limit.Pass(start + milliseconds(1500)), 0);
  EXPECT_EQ(limit.Pass(start + milliseconds(1999)), std::nullopt);
  EXPECT_EQ(limit.Pass(start + hours(1)), 1);
}

}  // namespace
}  // namespace aft::server
