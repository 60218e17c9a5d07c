#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "server/api/oip/answer.h"
#include "server/engine/request.h"

namespace aft::server::kserve {

// One request of ModelInfer or ModelStreamInfer, checked.
struct Inference {
  // Headers hold the service class only. An encoder's sequences are a request each.
  std::variant<GenerationRequest, ScoringRequest, std::vector<EncodingRequest>> work;
  std::unique_ptr<Answer> answer;
  size_t tokens = 0;        // of its texts
  size_t tensor_bytes = 0;  // of its vectors and masks, as the engine has them
  bool streams = false;     // a response a token
  // A last response that is empty is wanted nevertheless.
  bool empty_final = false;
  std::chrono::microseconds timeout{0};  // 0: none
};

// Whether a request may be answered by more than one response.
enum class Reply { kUnary, kStream };

}  // namespace aft::server::kserve
