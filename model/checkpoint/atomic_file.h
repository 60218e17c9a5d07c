#ifndef AFT_MODEL_CHECKPOINT_ATOMIC_FILE_H_
#define AFT_MODEL_CHECKPOINT_ATOMIC_FILE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

// Writes a file so that `path` holds either its old content or all of the new, also after a crash:
// a temporary file beside it, synced, then renamed. Thread-compatible.
class AtomicFile {
 public:
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path);

  // Removes the temporary file unless Commit succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status Append(const void* data, size_t bytes);

  // Last call.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, int fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

  absl::Status Error(absl::string_view what) const;

  const std::string path_;
  const std::string temporary_;
  int fd_;
  bool committed_ = false;
};

// One call for content that is at hand.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view content);

}  // namespace aft

#endif  // AFT_MODEL_CHECKPOINT_ATOMIC_FILE_H_
