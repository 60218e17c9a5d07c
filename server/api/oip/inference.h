#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "server/api/aft/named_options.h"
#include "server/api/oip/answer.h"
#include "server/call/work.h"

namespace aft::server::oip {

// One request of ModelInfer or ModelStreamInfer, decoded and checked.
struct Inference {
  Work work;                  // of the headers, only the service class is set
  const char* text = "";      // the name of the tensor with a generation's prompt
  GenerationOptions options;  // for Rename; their values are cleared
  std::unique_ptr<Answer> answer;
  size_t tokens = 0;        // number of tokens that the engine keeps
  size_t tensor_bytes = 0;  // of its vectors and masks, as the engine stores them
  bool streams = false;     // there is a response for each token
  // The last response is sent even if it is empty.
  bool empty_final = false;
  std::chrono::microseconds timeout{0};  // 0: none
};

// Whether a request may have more than one response.
enum class Reply { kUnary, kStream };

}  // namespace aft::server::oip
