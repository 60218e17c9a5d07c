#ifndef AFT_CLIENT_LIB_STREAM_CHECKER_H_
#define AFT_CLIENT_LIB_STREAM_CHECKER_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"

namespace aft::client {

// Follows one stream of InferenceService and finds what breaks the protocol: the order of Started,
// parts and Finished, and gaps between parts. Thread-compatible.
class StreamChecker {
 public:
  // Each returns what is wrong with `event`; empty: nothing. An event of a newer server is fine.
  std::string Take(const v1::GenerateResponse& event);
  std::string Take(const v1::ScoreResponse& event);
  std::string Take(const v1::EncodeResponse& event);

  bool started() const { return started_; }
  bool finished() const { return finished_; }
  // Tokens, or vectors, that have come.
  uint32_t received() const { return received_; }

 private:
  // An event that is no part.
  template <typename Response>
  std::string TakeEnd(const Response& event);
  // `first`: where the part says that it begins, counted like received().
  std::string TakePart(absl::string_view unit, int64_t first, int64_t count);

  bool started_ = false;
  bool finished_ = false;
  uint32_t received_ = 0;
  int64_t width_ = 0;  // of a vector
};

}  // namespace aft::client

#endif  // AFT_CLIENT_LIB_STREAM_CHECKER_H_
