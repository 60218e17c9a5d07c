// Files of torch.save. The input is either "raw", a newline and the file; or the pickle of an
// archive with three storages. The tensors of an accepted file are within it.
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "model/convert/weight_files.h"
#include "tests/fuzz/target.h"
#include "tests/support/temp_files.h"
#include "tests/support/torch_archive.h"

namespace aft::fuzz {

// An instruction of one byte makes a value of the machine, with a list of one other value.
const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 160};

}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  static MemoryFile file;
  absl::string_view input = fuzz::AsText(data, size);
  if (absl::ConsumePrefix(&input, "raw\n")) {
    file.Write(std::string(input));
  } else {
    const std::string numbers("\0\1\0\1\1\1\0\0\1\0\1\1\0\0\1\0", 16);
    file.Write(ZipOf({{"a/data.pkl", std::string(input)},
                      {"a/data/0", numbers},
                      {"a/data/1", numbers + numbers},
                      {"a/data/2", ""}}));
  }
  for (const std::vector<std::string>& keys : {std::vector<std::string>{}, {"model"}}) {
    const absl::StatusOr<WeightFiles> files = WeightFiles::OpenFile(file.path(), keys);
    if (!files.ok()) {
      AFT_CHECK(absl::IsInvalidArgument(files.status()) || absl::IsDataLoss(files.status()));
      AFT_CHECK(absl::StartsWith(files.status().message(), file.path() + ": "));
      AFT_CHECK(fuzz::IsMessage(files.status().message()));
      continue;
    }
    for (const auto& [name, entry] : files->entries()) {
      const absl::StatusOr<at::Tensor> tensor = files->Read(name);
      AFT_CHECK(tensor.ok() || absl::IsDataLoss(tensor.status()));
      if (!tensor.ok()) continue;
      AFT_CHECK(tensor->is_contiguous() && tensor->sizes().vec() == entry.shape);
      AFT_CHECK(tensor->nbytes() <= size + 1024);
    }
  }
}
