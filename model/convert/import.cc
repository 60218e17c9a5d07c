#include "model/convert/import.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/network/check_tensors.h"
#include "model/tokenizer/tokenizers.h"

namespace aft {

namespace fs = std::filesystem;

absl::Status WriteImport(const std::string& dir, const Import& import, Progress* progress) {
  fs::path target = fs::path(dir).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "out/"
  std::error_code error;
  if (fs::exists(target, error) &&
      !(fs::is_directory(target, error) && fs::is_empty(target, error))) {
    return absl::AlreadyExistsError(absl::StrCat(dir, ": exists and is not an empty folder"));
  }
  const std::string prefix = target.string() + ".partial-";
  RemoveAbandoned(prefix, "aft-convert");
  const fs::path partial = absl::StrCat(prefix, getpid());
  AFT_ASSIGN_OR_RETURN(const int lock, CreateLockedFolder(partial.string()));
  const absl::Cleanup unlock = [lock] { close(lock); };
  absl::Cleanup remove = [&partial] {
    std::error_code ignored;
    fs::remove_all(partial, ignored);
  };
  if (progress != nullptr) {
    int64_t bytes = Fp32Bytes(import.config);  // which are read again
    for (const auto& [name, tensor] : import.tensors) bytes += tensor.bytes();
    progress->Begin(bytes);
  }
  AFT_RETURN_IF_ERROR(
      WriteCheckpoint(partial.string(), import.config, import.tensors, import.metadata, progress));
  AFT_ASSIGN_OR_RETURN(CheckpointFile written, OpenCheckpoint(partial.string()));
  const TensorSource tensors = WithProgress(std::move(written.tensors), progress);
  AFT_RETURN_IF_ERROR(CheckTensors(written.config, tensors).status());
  for (const auto& [name, content] : import.files) {
    AFT_RETURN_IF_ERROR(WriteFileAtomically((partial / name).string(), {content}));
  }
  if (!import.config.tokenizer.empty()) {
    AFT_RETURN_IF_ERROR(
        LoadTokenizer(import.config.tokenizer, partial.string(), import.config.vocab_size)
            .status());
  }
  fs::rename(partial, target, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot create ", dir));
  std::move(remove).Cancel();
  return absl::OkStatus();
}

}  // namespace aft
