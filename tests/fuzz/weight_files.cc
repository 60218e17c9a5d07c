// Shards and their index. If they are accepted, each tensor of the shards occurs once, where the
// index says. Sections: the index; the shards a.safetensors and b.safetensors (FileOf).
#include "model/convert/weight_files.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "tests/fuzz/safetensors_file.h"
#include "tests/fuzz/target.h"
#include "tests/support/temp_files.h"

namespace aft::fuzz {

// A tensor is named in the index, in its shard's header and in the table of both.
const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 64};

namespace {

constexpr const char* kShards[] = {"a.safetensors", "b.safetensors"};

// A folder of files in memory.
struct Folder {
  Folder() {
    std::filesystem::create_symlink(index.path(), folder.File("model.safetensors.index.json"));
    for (int i = 0; i < 2; ++i) {
      std::filesystem::create_symlink(shards[i].path(), folder.File(kShards[i]));
    }
  }
  TempFolder folder;
  MemoryFile index;
  MemoryFile shards[2];
};

}  // namespace
}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  using namespace aft::fuzz;
  static Folder folder;
  const std::vector<absl::string_view> sections = Sections(AsText(data, size), 3);
  folder.index.Write(std::string(sections[0]));
  for (size_t i = 0; i < 2; ++i) {
    folder.shards[i].Write(FileOf(absl::StripSuffix(sections[i + 1], "\n")));
  }
  const absl::StatusOr<WeightFiles> files = WeightFiles::OpenFolder(folder.folder.path());
  if (!files.ok()) {
    absl::string_view message = files.status().message();
    AFT_CHECK(absl::IsInvalidArgument(files.status()) || absl::IsDataLoss(files.status()) ||
              absl::IsNotFound(files.status()) || absl::IsFailedPrecondition(files.status()));
    AFT_CHECK(absl::StrContains(message, folder.folder.path()) && IsMessage(message));
    absl::ConsumePrefix(&message, folder.folder.path());
    return;
  }
  size_t bytes = 0;
  size_t tensors = 0;
  for (const char* shard : kShards) {
    for (const auto& [name, entry] : files->entries()) {
      if (entry.shard != shard) continue;
      const auto tensor = files->Read(name);
      AFT_CHECK(tensor.ok() || absl::IsDataLoss(tensor.status()));
      if (tensor.ok()) AFT_CHECK(tensor->sizes().vec() == entry.shape);
      if (tensor.ok()) bytes += tensor->nbytes();
      ++tensors;
    }
  }
  AFT_CHECK(tensors == files->entries().size() && bytes <= size);
}
