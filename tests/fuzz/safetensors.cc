// A file of tensors (FileOf). The tensors of an accepted file cover each of its bytes exactly once.
#include "model/checkpoint/safetensors.h"

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "base/check.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/checkpoint/stored_weights.h"
#include "tests/fuzz/safetensors_file.h"
#include "tests/fuzz/target.h"
#include "tests/support/temp_files.h"

namespace aft::fuzz {

// A tensor takes an entry of the header and LibTorch's object; its name, 60 bytes of JSON at least.
const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 64};

}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  static MemoryFile memory_file;
  const std::string bytes = fuzz::FileOf(fuzz::AsText(data, size));
  memory_file.Write(bytes);
  const absl::StatusOr<SafetensorsFile> file = ReadSafetensors(memory_file.path());
  if (!file.ok()) {
    const absl::string_view message = file.status().message();
    AFT_CHECK(absl::StartsWith(message, memory_file.path() + ": "));
    AFT_CHECK(absl::IsDataLoss(file.status()) && fuzz::IsMessage(message));
    return;
  }
  uint64_t header_bytes = 0;
  AFT_CHECK(bytes.size() >= sizeof(header_bytes));
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  AFT_CHECK(header_bytes <= bytes.size() - sizeof(header_bytes));
  const absl::string_view json =
      absl::string_view(bytes).substr(sizeof(header_bytes), header_bytes);
  const absl::string_view content =
      absl::string_view(bytes).substr(sizeof(header_bytes) + header_bytes);
  const auto header = ParseSafetensorsHeader(json, static_cast<int64_t>(content.size()));
  AFT_CHECK(header.ok() && header->tensors.size() == file->tensors.size());
  AFT_CHECK(header->metadata == file->metadata);
  std::vector<bool> used(content.size());
  for (const auto& [name, tensor] : file->tensors) {
    const TensorEntry& entry = header->tensors.at(name);
    AFT_CHECK(tensor.is_contiguous() && tensor.sizes().vec() == entry.shape);
    AFT_CHECK(static_cast<int64_t>(tensor.nbytes()) == entry.end - entry.begin);
    AFT_CHECK(entry.begin >= 0 && static_cast<size_t>(entry.end) <= content.size());
    for (int64_t i = entry.begin; i < entry.end; ++i) {
      AFT_CHECK(!used[static_cast<size_t>(i)]);
      used[static_cast<size_t>(i)] = true;
    }
    if (tensor.nbytes() == 0) continue;
    AFT_CHECK(std::memcmp(tensor.const_data_ptr(), content.data() + entry.begin, tensor.nbytes()) ==
              0);
  }
  AFT_CHECK(std::find(used.begin(), used.end(), false) == used.end());

  // As a checkpoint's: none in fewer bits is left.
  absl::StatusOr<std::unique_ptr<SafetensorsReader>> reader =
      SafetensorsReader::Open(memory_file.path());
  AFT_CHECK(reader.ok());
  const absl::StatusOr<TensorSource> source = ExpandedTensors(*std::move(reader));
  if (!source.ok()) {
    AFT_CHECK(absl::IsDataLoss(source.status()) && fuzz::IsMessage(source.status().message()));
    return;
  }
  for (const std::string& name : source->names()) {
    const absl::StatusOr<at::Tensor> tensor = source->Read(name);
    AFT_CHECK(tensor.ok() && tensor->sizes().vec() == header->tensors.at(name).shape);
    AFT_CHECK(tensor->scalar_type() != at::kChar && tensor->scalar_type() != at::kBFloat16);
    AFT_CHECK(tensor->scalar_type() != at::kHalf);
  }
}
