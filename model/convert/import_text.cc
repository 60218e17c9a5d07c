#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/convert/import.h"

namespace aft {
namespace {

std::string Form(const std::string& dtype, const std::vector<int64_t>& shape) {
  return absl::StrCat(dtype, " [", absl::StrJoin(shape, ", "), "]");
}

int64_t Bytes(const MappedTensor& tensor) {
  int64_t bytes = SafetensorsDtypeBytes(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= size;
  return bytes;
}

}  // namespace

std::string ImportText(const Import& import) {
  std::string text;
  if (import.mapped.empty()) return text;
  for (const std::string& path : import.read) absl::StrAppend(&text, "read          ", path, "\n");

  std::vector<std::string> names, forms;
  size_t name_width = 0;
  size_t form_width = 0;
  for (const MappedTensor& tensor : import.mapped) {
    names.push_back(ShownTensorName(tensor.name));
    forms.push_back(Form(tensor.dtype, tensor.shape));
    name_width = std::max(name_width, names.back().size());
    form_width = std::max(form_width, forms.back().size());
  }
  int64_t read = 0;
  int64_t left = 0;
  for (size_t i = 0; i < import.mapped.size(); ++i) {
    const MappedTensor& tensor = import.mapped[i];
    std::string target = tensor.target;
    const auto made = import.tensors.find(target);
    if (made != import.tensors.end()) {
      absl::StrAppend(&target, "  ",
                      Form(SafetensorsDtypeName(made->second.type), made->second.shape));
    }
    left += made == import.tensors.end();
    read += Bytes(tensor);
    absl::StrAppendFormat(&text, "%-*s  %-*s  ->  %s\n", static_cast<int>(name_width), names[i],
                          static_cast<int>(form_width), forms[i], target);
  }
  int64_t written = 0;
  for (const auto& [name, tensor] : import.tensors) written += tensor.bytes();
  absl::StrAppend(&text, "tensors       ", import.mapped.size(), " read, ", read, " bytes; ",
                  import.tensors.size(), " made, ", written, " bytes; ", left,
                  left == 0 ? " left\n" : " left: those with a reason in ( )\n");
  return text;
}

}  // namespace aft
