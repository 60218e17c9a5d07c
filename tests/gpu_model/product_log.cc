#define NDEBUG  // LibTorch was built with it, and RecordFunction has another layout without it
#include "tests/gpu_model/product_log.h"

#include <memory>

#include "ATen/record_function.h"
#include "absl/strings/string_view.h"

namespace aft {
namespace {

thread_local std::vector<int64_t> products;

std::unique_ptr<at::ObserverContext> Note(const at::RecordFunction& function) {
  if (absl::string_view(function.name()) == "aten::mm") {
    products.push_back(function.inputs().front().toTensor().size(0));
  }
  return nullptr;
}

}  // namespace

ProductLog::ProductLog() {
  products.clear();
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&Note).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

ProductLog::~ProductLog() { at::removeCallback(callback_); }

const std::vector<int64_t>& ProductLog::rows() const { return products; }

}  // namespace aft
