#include "server/states/state_folder.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "server/states/state_store.h"
#include "tests/support/short_memory.h"
#include "tests/support/states.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

namespace fs = std::filesystem;

constexpr milliseconds kHour{3'600'000};
constexpr int64_t kMaxBytes = 100'000;

// An id of 32 such digits.
std::string Id(char digit) { return std::string(32, digit); }

// The whole id gives access to the state, so no error in the log may have it.
auto ShowsOnlyTheBeginningOf(const std::string& id) {
  return AllOf(HasSubstr(id.substr(0, 8) + "*"), Not(HasSubstr(id)));
}

class StateFolderTest : public testing::Test {
 protected:
  StateFolderTest() : sealer_(SealerOf("key", 'k')) { fs::create_directory(path()); }
  ~StateFolderTest() override { folder_.reset(); }

  StateSealer SealerOf(const std::string& file, char key) {
    WriteBytes(temp_.File(file), std::string(32, key));
    auto sealer = StateSealer::Create({temp_.File(file)});
    EXPECT_TRUE(sealer.ok()) << sealer.status();
    return *std::move(sealer);
  }

  std::string path() const { return temp_.File("states"); }
  std::string FileOf(const std::string& id) const { return path() + "/" + id + ".state"; }

  absl::StatusOr<std::unique_ptr<StateFolder>> TryOpen(const StateSealer& sealer) {
    return StateFolder::Open(path(), sealer, metrics_,
                             {.wall = [this] { return now_ + jump_; },
                              .steady = [this] { return TimePoint(now_.time_since_epoch()); }});
  }
  // Opens the folder as a new process does.
  void Open() {
    folder_.reset();
    auto folder = TryOpen(sealer_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_ = *std::move(folder);
  }
  std::vector<std::string> Load(int64_t max_bytes = kMaxBytes, milliseconds max_ttl = 24 * kHour) {
    std::vector<std::string> ids;
    loaded_.clear();
    folder_->Load(max_bytes, max_ttl, [&](const StateFolder::File& file) {
      ids.push_back(file.id);
      loaded_.push_back(file);
      return absl::OkStatus();
    });
    Finish();
    return ids;
  }

  static StateFolder::File File(const std::string& id, milliseconds ttl = kHour) {
    SequenceState state;
    state.model = 7;
    state.tokens = 12;
    state.snapshot = std::string("s\n\0s", 4) + std::string(5000, 's');
    return {.id = id,
            .client = "10.0.0.1",
            .owner = "",
            .model = "austen",
            .ttl = ttl,
            .state = std::make_shared<const SequenceState>(std::move(state))};
  }
  absl::Status Write(const StateFolder::File& file) {
    return Await<absl::Status>([&](const auto& done) { folder_->Write(file, done); });
  }
  absl::Status Remove(const std::string& id) {
    return Await<absl::Status>([&](const auto& done) { folder_->Remove(id, done); });
  }
  // Returns when all that was asked for before is done.
  void Finish() { EXPECT_TRUE(Remove(Id('f')).ok()); }
  void Expire() {
    folder_->Expire();
    Finish();
  }
  // The names of all files except the lock.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path())) {
      if (entry.path().filename() != "lock") names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempFolder temp_;
  prometheus::Registry registry_;
  StateMetrics metrics_{registry_};
  StateSealer sealer_;
  std::chrono::system_clock::time_point now_{std::chrono::hours(500'000)};
  milliseconds jump_{0};  // by which the wall clock was set
  std::unique_ptr<StateFolder> folder_;
  std::vector<StateFolder::File> loaded_;
};

TEST_F(StateFolderTest, TheNextProcessFindsWhatThisOneWrote) {
  Open();
  StateFolder::File file = File(Id('a'));
  file.owner = "ada";
  ASSERT_TRUE(Write(file).ok());
  ASSERT_TRUE(Write(File(Id('9'), 2 * kHour)).ok());
  EXPECT_THAT(Names(), ElementsAre(Id('9') + ".state", Id('a') + ".state"));
  struct stat info {};
  ASSERT_EQ(stat(FileOf(Id('a')).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  now_ += milliseconds(1000);
  Open();
  ASSERT_THAT(Load(), ElementsAre(Id('9'), Id('a')));
  EXPECT_EQ(loaded_[0].ttl, 2 * kHour - milliseconds(1000));
  EXPECT_EQ(loaded_[1].ttl, kHour - milliseconds(1000));
  EXPECT_EQ(loaded_[0].owner, "");
  EXPECT_EQ(loaded_[1].owner, "ada");
  EXPECT_EQ(loaded_[1].client, "10.0.0.1");
  EXPECT_EQ(loaded_[1].model, "austen");
  EXPECT_EQ(loaded_[1].state->snapshot, file.state->snapshot);
  EXPECT_EQ(loaded_[1].state->tokens, 12);
  EXPECT_EQ(metrics_.skipped.Value(), 0);
}

TEST_F(StateFolderTest, WritesAreDoneBeforeTheFolderIsClosed) {
  Open();
  int done = 0;
  for (const char digit : std::string("0123456789")) {
    folder_->Write(File(Id(digit)), [&](const absl::Status& status) { done += status.ok(); });
  }
  folder_.reset();
  EXPECT_EQ(done, 10);
  EXPECT_EQ(Names().size(), 10);
}

TEST_F(StateFolderTest, ARemovedStateIsGoneAndMayBeRemovedTwice) {
  Open();
  ASSERT_TRUE(Write(File(Id('a'))).ok());
  EXPECT_TRUE(Remove(Id('a')).ok());
  EXPECT_TRUE(Remove(Id('a')).ok());
  EXPECT_THAT(Names(), IsEmpty());
  fs::create_directory(FileOf(Id('b')));  // unlink fails on a folder
  EXPECT_THAT(Remove(Id('b')).message(), ShowsOnlyTheBeginningOf(Id('b')));
}

TEST_F(StateFolderTest, NothingButAnIdBecomesAPath) {
  Open();
  WriteBytes(temp_.File("outside.state"), "x");
  for (const std::string& id :
       {std::string("../outside"), std::string(), std::string(31, 'a'), std::string(33, 'a'),
        std::string(32, 'A'), std::string(32, 'g'), std::string(32, '/'), std::string(32, '.')}) {
    EXPECT_FALSE(Write(File(id)).ok()) << id;
    EXPECT_FALSE(Remove(id).ok()) << id;
  }
  EXPECT_EQ(ReadBytes(temp_.File("outside.state")), "x");
  StateFolder::File file = File(Id('a'));
  file.model = "two\nlines";
  EXPECT_FALSE(Write(file).ok());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StateFolderTest, ANewStateOfAnIdReplacesTheLastOneOrLeavesIt) {
  Open();
  const std::string id = StateStore::ResumePointName(Id('a'));
  StateFolder::File file = File(id);
  ASSERT_TRUE(Write(file).ok());
  ASSERT_TRUE(Write(File(Id('a'))).ok());  // another state
  SequenceState later = *file.state;
  later.tokens = 13;
  file.state = std::make_shared<const SequenceState>(later);
  file.ttl = 2 * kHour;
  ASSERT_TRUE(Write(file).ok());
  EXPECT_THAT(Names(), ElementsAre(Id('a') + ".state", id + ".state"));
  file.model = "two\nlines";
  EXPECT_FALSE(Write(file).ok());
  now_ += kHour;
  Expire();
  Open();
  ASSERT_THAT(Load(), ElementsAre(id));
  EXPECT_EQ(loaded_[0].state->tokens, 13);
  EXPECT_EQ(loaded_[0].ttl, kHour);
}

TEST_F(StateFolderTest, FilesAreRemovedWhenTheyExpireAndNotBefore) {
  Open();
  ASSERT_TRUE(Write(File(Id('a'), kHour)).ok());
  ASSERT_TRUE(Write(File(Id('b'), 2 * kHour)).ok());
  ASSERT_TRUE(Write(File(Id('c'), 3 * kHour)).ok());
  now_ += kHour - milliseconds(1);
  Expire();
  EXPECT_EQ(Names().size(), 3);
  now_ += milliseconds(1);
  Expire();
  EXPECT_THAT(Names(), ElementsAre(Id('b') + ".state", Id('c') + ".state"));
  now_ += kHour;
  Open();  // b expired meanwhile
  EXPECT_THAT(Load(), ElementsAre(Id('c')));
  EXPECT_THAT(Names(), ElementsAre(Id('c') + ".state"));
  now_ += kHour;  // states that were loaded expire like those that were written
  Expire();
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(metrics_.skipped.Value(), 0);
}

// A stream may write its resume point again at the moment when the one before expires.
TEST_F(StateFolderTest, AFileThatIsWrittenAgainWhileItExpiresStays) {
  constexpr int kFiles = 64;
  Open();
  std::vector<std::string> ids;
  for (int i = 0; i < kFiles; ++i) {
    ids.push_back(StateStore::ResumePointName(absl::StrFormat("%032x", i)));
    folder_->Write(File(ids.back()), [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  }
  Finish();
  now_ += kHour;
  std::thread expiry([this] { folder_->Expire(); });
  // Once the first one goes, all are written again, the last one first.
  while (fs::exists(FileOf(ids.front()))) std::this_thread::yield();
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    folder_->Write(File(*id), [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  }
  expiry.join();
  Finish();
  EXPECT_EQ(Names().size(), kFiles);
}

TEST_F(StateFolderTest, AFileThatIsWrittenAgainBeforeItIsRemovedStays) {
  Open();
  ASSERT_TRUE(Write(File(Id('a'))).ok());
  ASSERT_TRUE(Write(File(Id('b'))).ok());
  now_ += kHour;
  std::promise<void> gate;
  folder_->Remove(Id('f'), [&gate](const absl::Status&) { gate.get_future().wait(); });
  folder_->Write(File(Id('a')), [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  folder_->Expire();  // both have expired, and the new write of a still waits
  gate.set_value();
  Finish();
  EXPECT_THAT(Names(), ElementsAre(Id('a') + ".state"));
  now_ += kHour;
  Expire();
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StateFolderTest, NoFileOutlivesTheLongestTimeThatThisProcessAllows) {
  Open();
  ASSERT_TRUE(Write(File(Id('a'), 10 * kHour)).ok());
  EXPECT_THAT(Load(kMaxBytes, 2 * kHour), ElementsAre(Id('a')));
  EXPECT_EQ(loaded_[0].ttl, 2 * kHour);
  now_ += 2 * kHour - milliseconds(1);
  Expire();
  EXPECT_EQ(Names().size(), 1);
  now_ += milliseconds(1);
  Expire();
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StateFolderTest, AClockThatIsSetWhileTheServerRunsNeitherEndsAStateNorKeepsIt) {
  Open();
  ASSERT_TRUE(Write(File(Id('a'))).ok());
  jump_ = 1000 * kHour;
  Expire();
  EXPECT_EQ(Names().size(), 1);
  jump_ = -1000 * kHour;
  now_ += kHour;
  Expire();
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StateFolderTest, AClockThatWasSetBackBetweenTwoProcessesKeepsAStateForTheLongestTime) {
  Open();
  ASSERT_TRUE(Write(File(Id('a'))).ok());
  jump_ = -1000 * kHour;
  Open();
  EXPECT_THAT(Load(kMaxBytes, 24 * kHour), ElementsAre(Id('a')));
  EXPECT_EQ(loaded_[0].ttl, 24 * kHour);
  now_ += 24 * kHour;
  Expire();
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StateFolderTest, EveryByteIsUnderTheSealAndDamagedFilesStay) {
  Open();
  StateFolder::File file = File(Id('a'));
  file.owner = "ada";
  ASSERT_TRUE(Write(file).ok());
  const std::string good = ReadBytes(FileOf(Id('a')));
  size_t bad = 0;
  const auto expect_skipped = [&](const std::string& bytes) {
    WriteBytes(FileOf(Id('a')), bytes);
    EXPECT_THAT(Load(), IsEmpty()) << bytes.substr(0, 60);
    EXPECT_EQ(metrics_.skipped.Value(), ++bad);
    EXPECT_EQ(ReadBytes(FileOf(Id('a'))), bytes);
  };
  for (size_t at = 0; at < good.size(); at += at < 200 ? 1 : 97) {
    std::string changed = good;
    changed[at] ^= 1;
    expect_skipped(changed);
  }
  for (size_t size = 0; size < good.size(); size += size < 200 ? 1 : 97) {
    expect_skipped(good.substr(0, size));
  }
  expect_skipped(good + "x");
  // The file of another id is refused.
  WriteBytes(FileOf(Id('a')), good);
  fs::rename(FileOf(Id('a')), FileOf(Id('b')));
  EXPECT_THAT(Load(), IsEmpty());
  fs::rename(FileOf(Id('b')), FileOf(Id('a')));
  EXPECT_THAT(Load(), ElementsAre(Id('a')));
  // The sealed part of a file is not an exported state, and an exported state is not such a part.
  const std::string header = good.substr(0, good.find("AFTSEAL2"));
  EXPECT_FALSE(sealer_.Open(good.substr(header.size())).ok());
  bad = static_cast<size_t>(metrics_.skipped.Value());
  expect_skipped(header + *sealer_.Seal(*file.state));
}

TEST_F(StateFolderTest, FilesOfAnotherKeyAreLeftAlone) {
  Open();
  ASSERT_TRUE(Write(File(Id('a'))).ok());
  const StateSealer other = SealerOf("other", 'o');
  folder_.reset();
  folder_ = *TryOpen(other);
  EXPECT_THAT(Load(), IsEmpty());
  now_ += 2 * kHour;
  Expire();
  EXPECT_EQ(metrics_.skipped.Value(), 1);
  now_ -= 2 * kHour;
  Open();
  EXPECT_THAT(Load(), ElementsAre(Id('a')));
}

TEST_F(StateFolderTest, AFileWithoutRoomInMemoryStaysUntilItExpires) {
  Open();
  ASSERT_TRUE(Write(File(Id('a'))).ok());
  folder_->Load(kMaxBytes, kHour,
                [](const StateFolder::File&) { return absl::ResourceExhaustedError("full"); });
  EXPECT_EQ(metrics_.skipped.Value(), 1);
  const auto bytes = static_cast<int64_t>(fs::file_size(FileOf(Id('a'))));
  EXPECT_THAT(Load(bytes - 1), IsEmpty());
  EXPECT_EQ(metrics_.skipped.Value(), 2);
  EXPECT_THAT(Load(bytes), ElementsAre(Id('a')));
  now_ += kHour;
  Expire();
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StateFolderTest, TemporaryFilesOfACrashAreRemovedAndForeignFilesStay) {
  const std::string ours = Id('a') + ".state.tmp.123.0";
  for (const std::string& name :
       {ours, std::string("notes.state.tmp.1"), std::string("notes.state"), Id('a') + ".bak"}) {
    WriteBytes(path() + "/" + name, "x");
  }
  fs::create_directory(FileOf(Id('b')));
  Open();
  EXPECT_THAT(Load(), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre(Id('a') + ".bak", Id('b') + ".state", "notes.state",
                                   "notes.state.tmp.1"));
  EXPECT_EQ(metrics_.skipped.Value(), 1);  // the folder that is named like a state
}

TEST_F(StateFolderTest, AFullDiskIsAnErrorOfOneStateAlone) {
  Open();
  ASSERT_TRUE(Write(File(Id('a'))).ok());
  const std::string good = ReadBytes(FileOf(Id('a')));
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;  // less than a state
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status full = Write(File(Id('b')));
  const absl::Status again = Write(File(Id('a')));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(full.message(), ShowsOnlyTheBeginningOf(Id('b')));
  EXPECT_THAT(again.message(), ShowsOnlyTheBeginningOf(Id('a')));
  EXPECT_EQ(metrics_.refused(StateRefusal::kUnwritten).Value(), 2);
  EXPECT_THAT(Names(), ElementsAre(Id('a') + ".state"));
  EXPECT_EQ(ReadBytes(FileOf(Id('a'))), good);
  EXPECT_TRUE(Write(File(Id('b'))).ok());
  EXPECT_EQ(metrics_.refused(StateRefusal::kUnwritten).Value(), 2);
}

TEST_F(StateFolderTest, AStateWithoutMemoryIsRefusedForThatReason) {
  Open();
  const StateFolder::File file = File(Id('a'));
  {
    const ShortMemory short_memory(file.state->snapshot.size());
    EXPECT_THAT(Write(file), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory: ")));
  }
  EXPECT_TRUE(Write(file).ok());
}

TEST_F(StateFolderTest, WhileTheDiskHangsALimitedNumberOfRemovalsWaits) {
  Open();
  ASSERT_TRUE(Write(File(Id('a'))).ok());
  ASSERT_TRUE(Write(File(Id('b'))).ok());
  std::promise<void> hangs;
  std::promise<void> answers;
  folder_->Write(File(Id('c')), [&](const absl::Status&) {
    hangs.set_value();
    answers.get_future().wait();
  });
  hangs.get_future().wait();
  std::atomic<size_t> removed = 0;
  for (size_t i = 0; i < StateFolder::kMostRemovals; ++i) {
    folder_->Remove(Id('a'), [&](const absl::Status& status) { removed += status.ok() ? 1 : 0; });
  }
  EXPECT_EQ(Remove(Id('b')).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(metrics_.refused(StateRefusal::kUnwritten).Value(), 1);
  EXPECT_EQ(removed, 0);
  answers.set_value();
  while (removed < StateFolder::kMostRemovals) std::this_thread::yield();
  EXPECT_THAT(Names(), ElementsAre(Id('b') + ".state", Id('c') + ".state"));
  EXPECT_TRUE(Remove(Id('c')).ok());
  now_ += kHour;
  Expire();
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StateFolderTest, NoFileExpiresLaterThanTheLatestTime) {
  Open();
  for (const char digit : {'a', 'b', 'c'}) {
    const int64_t latest = StateFolder::kLatest;
    const int64_t expires = digit == 'a'   ? latest
                            : digit == 'b' ? latest + 1
                                           : std::numeric_limits<int64_t>::max();
    const std::string header = absl::StrFormat("AFTKEPT1\n%d\n10.0.0.1\n\nausten\n", expires);
    const auto sealed = sealer_.Seal(*File(Id(digit)).state, Id(digit) + "\n" + header);
    ASSERT_TRUE(sealed.ok()) << sealed.status();
    WriteBytes(FileOf(Id(digit)), header + *sealed);
  }
  EXPECT_THAT(Load(), ElementsAre(Id('a')));
  EXPECT_EQ(metrics_.skipped.Value(), 2);
}

TEST_F(StateFolderTest, AFileSystemThatCouldNeverHoldTheBudgetIsNamed) {
  Open();
  EXPECT_TRUE(folder_->CheckSpace(1).ok());
  EXPECT_THAT(
      folder_->CheckSpace(int64_t{1} << 60),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("states.folder: " + path()), HasSubstr("states.max_bytes="))));
}

TEST_F(StateFolderTest, OneServerAtATimeUsesAFolder) {
  Open();
  EXPECT_THAT(TryOpen(sealer_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(path()), HasSubstr("another server uses it"))));
  folder_.reset();
  EXPECT_TRUE(TryOpen(sealer_).ok());
}

TEST_F(StateFolderTest, AFolderThatCannotBeUsedIsNamed) {
  fs::remove_all(path());
  EXPECT_THAT(TryOpen(sealer_).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("states.folder: " + path())));
  WriteBytes(path(), "a file");
  EXPECT_THAT(TryOpen(sealer_).status().message(), HasSubstr("states.folder: " + path()));
  fs::remove(path());
  fs::create_directory(path());
  fs::create_directory(path() + "/probe");  // in the way of the file that Open tries to write
  EXPECT_THAT(TryOpen(sealer_).status().message(), HasSubstr("states.folder: " + path()));
}

}  // namespace
}  // namespace aft::server
