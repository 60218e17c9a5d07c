#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tests/integration/oip/fixture.h"

// Requests with vectors for the fake encoder of width 3, which may be a bare mixer.
namespace aft::server {

inline constexpr float kHidden = -std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A model "encoder" that accepts only vectors.
inline FakeEncoderRunner::Options BareMixer(bool causal = true, int64_t max_image_width = 0) {
  FakeEncoderRunner::Options options;
  options.vocab_size = 0;
  options.causal = causal;
  options.max_image_width = max_image_width;
  return options;
}

inline std::vector<float> Count(int64_t n, float first = 1) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(first + static_cast<float>(i));
  return values;
}

inline InferBuilder Vectors(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return InferBuilder("encoder").Raw("inputs_embeds", "FP32", shape, RawOf(values));
}
// One row of shape [1, tokens, 3].
inline InferBuilder Row(int64_t tokens) { return Vectors({1, tokens, 3}, Count(tokens * 3)); }

inline std::vector<float> Hidden(const OipServer::Answer& answer) {
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  return Numbers<float>(answer.response, "last_hidden_state");
}

// The fake encoder's vectors of all rows, one after another.
inline std::vector<float> Want(const std::vector<EncoderInput>& rows) {
  std::vector<float> all;
  for (const EncoderInput& row : rows) {
    const std::vector<float> vectors = FakeEncoderRunner::Vectors({}, row);
    all.insert(all.end(), vectors.begin(), vectors.end());
  }
  return all;
}

}  // namespace aft::server
