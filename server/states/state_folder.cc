#include "server/states/state_folder.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/atomic_file.h"
#include "base/catching.h"
#include "base/status_macros.h"
#include "server/config/text_proto.h"  // ReadConfigFile
#include "server/observability/log.h"
#include "server/states/state_store.h"

namespace aft::server {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kFileMagic = "AFTKEPT1";
constexpr absl::string_view kSuffix = ".state";
// The time until the next attempt to remove an expired file.
constexpr std::chrono::minutes kRemoveAgain{1};

// The id in the name of a state's file, or, with `temporary`, of a half-written one. "": not ours.
std::string IdOfFile(absl::string_view name, bool temporary) {
  const absl::string_view id = name.substr(0, name.find('.'));
  const absl::string_view rest = name.substr(id.size());
  const bool ours =
      temporary ? absl::StartsWith(rest, absl::StrCat(kSuffix, ".tmp.")) : rest == kSuffix;
  return ours && StateStore::IsName(id) ? std::string(id) : "";
}

// The lines that a file begins with.
std::string HeaderOf(const StateFolder::File& file, int64_t expires) {
  return absl::StrCat(kFileMagic, "\n", expires, "\n", file.client, "\n", file.owner, "\n",
                      file.model, "\n");
}

absl::Status Unusable(const std::string& path, absl::string_view what, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("states.folder: ", path, ": ", what));
}

}  // namespace

absl::Status StateFolder::File::Check() const {
  if (!StateStore::IsName(id)) return absl::InternalError("not an id");
  for (const std::string& name : {client, owner, model}) {
    if (absl::StrContains(name, '\n')) return absl::InternalError("a name of several lines");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StateFolder>> StateFolder::Open(const std::string& path,
                                                               const StateSealer& sealer,
                                                               StateMetrics& metrics,
                                                               StateFolderClocks clocks) {
  const std::string lock_path = absl::StrCat(path, "/lock");
  const int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return Unusable(path, "cannot open its file \"lock\"", errno);
  std::unique_ptr<StateFolder> folder(
      new StateFolder(path, lock, sealer, metrics, std::move(clocks)));  // closes the lock
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Unusable(path, "cannot lock its file \"lock\"", errno);
    return absl::FailedPreconditionError(
        absl::StrCat("states.folder: ", path, ": another server uses it"));
  }
  std::error_code error;
  fs::directory_iterator entry(path, error);
  std::vector<fs::path> leftover;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (!IdOfFile(entry->path().filename().string(), /*temporary=*/true).empty()) {
      leftover.push_back(entry->path());
    }
  }
  for (const fs::path& file : leftover) {
    if (!error) fs::remove(file, error);
  }
  if (error) return Unusable(path, "cannot remove leftover files", error.value());
  // The probe is empty, because a full disk must not prevent a start with the states that it has.
  const std::string probe = absl::StrCat(path, "/probe");
  const absl::Status written = WriteFileAtomically(probe, {}, 0600);
  if (!written.ok()) {
    return absl::Status(written.code(),
                        absl::StrCat("states.folder: ", path, ": ", written.message()));
  }
  if (unlink(probe.c_str()) != 0) return Unusable(path, "cannot remove its file \"probe\"", errno);
  return folder;
}

StateFolder::StateFolder(std::string path, int lock, const StateSealer& sealer,
                         StateMetrics& metrics, StateFolderClocks clocks)
    : path_(std::move(path)),
      lock_(lock),
      sealer_(sealer),
      metrics_(metrics),
      clocks_(std::move(clocks)),
      thread_([this] { Run(); }) {}

StateFolder::~StateFolder() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  close(lock_);
}

std::vector<std::string> StateFolder::Ids() const {
  std::vector<std::string> ids;
  std::error_code error;
  fs::directory_iterator entry(path_, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::string id = IdOfFile(entry->path().filename().string(), /*temporary=*/false);
    if (!id.empty()) ids.push_back(std::move(id));
  }
  if (error) log::Error("states.list_failed", {{"folder", path_}, {"error", error.message()}});
  std::sort(ids.begin(), ids.end());
  return ids;
}

absl::Status StateFolder::CheckSpace(int64_t bytes) const {
  std::error_code error;
  const fs::space_info space = fs::space(path_, error);
  if (error) return Unusable(path_, "cannot ask for its file system's size", error.value());
  const auto wanted = static_cast<uintmax_t>(bytes);
  if (space.capacity < wanted) {
    return absl::FailedPreconditionError(
        absl::StrCat("states.folder: ", path_, ": its file system has ", space.capacity,
                     " bytes, less than states.max_bytes=", bytes));
  }
  uintmax_t left = space.available;
  for (const std::string& id : Ids()) {
    const uintmax_t size = fs::file_size(PathOf(id), error);
    if (!error) left += size;
  }
  if (left < wanted) {
    log::Warning("states.folder_small", {{"folder", path_}, {"left", left}, {"max_bytes", bytes}});
  }
  return absl::OkStatus();
}

void StateFolder::Load(int64_t max_bytes, std::chrono::milliseconds max_ttl,
                       const std::function<absl::Status(File)>& take) {
  size_t taken = 0;
  for (const std::string& id : Ids()) {
    absl::StatusOr<File> file = Read(id, max_bytes);
    absl::Status status = file.status();
    if (status.ok()) {
      file->ttl = std::clamp(file->ttl, std::chrono::milliseconds(0), max_ttl);
      // Set even where memory has no place for the state, so that the file is removed in time.
      {
        MutexLock lock(mutex_);
        expiries_[id] = clocks_.steady() + file->ttl;
      }
      if (file->ttl.count() <= 0) continue;
      status = take(*std::move(file));
    }
    if (status.ok()) {
      ++taken;
      continue;
    }
    metrics_.skipped.Increment();
    log::Warning("states.skipped",
                 {{"file", PathOf(StateStore::ShownName(id))}, {"reason", status.message()}});
  }
  Expire();
  log::Info("states.loaded", {{"folder", path_}, {"states", taken}});
}

absl::StatusOr<StateFolder::File> StateFolder::Read(const std::string& id,
                                                    int64_t max_bytes) const {
  const std::string path = PathOf(id);
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) {
    return absl::InvalidArgumentError("not a regular file");
  }
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), "cannot read its size");
  if (bytes > static_cast<uintmax_t>(max_bytes)) {
    return absl::ResourceExhaustedError("larger than states.max_bytes");
  }
  AFT_ASSIGN_OR_RETURN(const std::string content, ReadConfigFile(path, max_bytes));
  const std::vector<absl::string_view> parts = absl::StrSplit(content, absl::MaxSplits('\n', 5));
  int64_t expires = 0;
  if (parts.size() != 6 || parts[0] != kFileMagic || !absl::SimpleAtoi(parts[1], &expires) ||
      expires < 0 || expires > kLatest) {
    return absl::InvalidArgumentError(
        "not a file of a state, or damaged, or of another version of the server");
  }
  File file{.id = id,
            .client = std::string(parts[2]),
            .owner = std::string(parts[3]),
            .model = std::string(parts[4])};
  AFT_ASSIGN_OR_RETURN(SequenceState state,
                       sealer_.Open(parts[5], absl::StrCat(id, "\n", HeaderOf(file, expires))));
  file.ttl = std::chrono::milliseconds(expires - Now());
  file.state = std::make_shared<const SequenceState>(std::move(state));
  return file;
}

void StateFolder::Write(File file, Done done) {
  const int64_t expires = Now() + file.ttl.count();
  const TimePoint over = clocks_.steady() + file.ttl;
  Add([this, file = std::move(file), expires, over, done = std::move(done)] {
    const absl::Status status = Catching([&] { return WriteNow(file, expires, over); });
    if (!status.ok()) metrics_.refused(StateRefusal::kUnwritten).Increment();
    done(status);
  });
}

absl::Status StateFolder::WriteNow(const File& file, int64_t expires, TimePoint over) {
  AFT_RETURN_IF_ERROR(file.Check());
  const std::string header = HeaderOf(file, expires);
  AFT_ASSIGN_OR_RETURN(const std::string sealed,
                       sealer_.Seal(*file.state, absl::StrCat(file.id, "\n", header)));
  const absl::Status status = WriteFileAtomically(PathOf(file.id), {header, sealed}, 0600);
  bool known = false;
  {
    MutexLock lock(mutex_);
    known = expiries_.count(file.id) > 0;
    if (status.ok()) expiries_[file.id] = over;
  }
  if (status.ok()) return status;
  // The new file may be there or not, so it is removed; but where an earlier one had this id (a
  // resume point), either of the two will do. A slow disk must not delay those who need the lock.
  if (!known) unlink(PathOf(file.id).c_str());
  return absl::Status(
      status.code(),
      absl::StrReplaceAll(status.message(), {{file.id, StateStore::ShownName(file.id)}}));
}

void StateFolder::Remove(const std::string& id, Done done) {
  {
    MutexLock lock(mutex_);
    if (removals_ < kMostRemovals) {
      ++removals_;
      tasks_.push_back([this, id, done = std::move(done)] {
        {
          MutexLock begun(mutex_);
          --removals_;
        }
        done(RemoveNow(id));
      });
      changed_.NotifyAll();
      return;
    }
  }
  metrics_.refused(StateRefusal::kUnwritten).Increment();
  done(absl::UnavailableError(absl::StrCat("states.folder: ", kMostRemovals, " removals wait")));
}

absl::Status StateFolder::RemoveNow(const std::string& id) {
  if (!StateStore::IsName(id)) return absl::InternalError("not an id");
  if (unlink(PathOf(id).c_str()) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot remove ", PathOf(StateStore::ShownName(id))));
  }
  MutexLock lock(mutex_);
  expiries_.erase(id);
  return absl::OkStatus();
}

void StateFolder::Expire() {
  const TimePoint now = clocks_.steady();
  MutexLock lock(mutex_);
  for (auto& [id, over] : expiries_) {
    if (over > now) continue;
    tasks_.push_back([this, id = id, again = now + kRemoveAgain] { RemoveExpired(id, again); });
    over = kQueued;  // so that a disk that hangs does not let the queue grow
    changed_.NotifyAll();
  }
}

// Runs on the folder's thread, like every write, so no write comes between check and removal.
void StateFolder::RemoveExpired(const std::string& id, TimePoint again) {
  {
    MutexLock lock(mutex_);
    const auto file = expiries_.find(id);
    // It was removed, or written again and has a time of its own.
    if (file == expiries_.end() || file->second != kQueued) return;
    file->second = again;
  }
  const absl::Status removed = RemoveNow(id);
  if (removed.ok()) return;
  if (const auto left_out = remove_errors_.Pass(std::chrono::steady_clock::now())) {
    log::Warning("states.remove_failed", {{"error", removed.ToString()}, {"left_out", *left_out}});
  }
}

void StateFolder::Add(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
}

void StateFolder::Run() {
  pthread_setname_np(pthread_self(), "aft-folder");
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !closed_) changed_.Wait(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    const absl::Status status = Catching([&task] {
      task();
      return absl::OkStatus();
    });
    // There is not even enough memory to tell the call.
    if (!status.ok()) log::Error("states.task_failed", {{"error", status.message()}});
  }
}

int64_t StateFolder::Now() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clocks_.wall().time_since_epoch())
      .count();
}

std::string StateFolder::PathOf(absl::string_view id) const {
  return absl::StrCat(path_, "/", id, kSuffix);
}

}  // namespace aft::server
