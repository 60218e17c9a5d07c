#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "client/lib/error_details.h"

namespace aft::client {

// Writes the body of a request that streams this generation.
std::string CompletionBody(const v1::GenerateRequest& request);

// Converts an answer with an error to a status. Its body should be an error in OpenAI's form.
// `details` are those that the headers have.
absl::Status HttpStatus(int code, absl::string_view body, const ErrorDetails& details);

// Reads the server-sent events of a completion. Thread-compatible.
class EventReader {
 public:
  using Take = std::function<void(const v1::GenerateResponse&)>;

  // Takes the next bytes, wherever the stream was cut. `take` gets a Delta for each text that the
  // bytes complete, and Finished for the usage.
  void Feed(absl::string_view bytes, const Take& take);
  // The stream ends here. Returns OK, the server's error, or DATA_LOSS if the stream is incomplete.
  absl::Status End() const;
  uint32_t texts() const { return texts_; }  // events with some text

 private:
  void OnLine(absl::string_view line, const Take& take);
  void OnData(absl::string_view data, const Take& take);
  void OnText(absl::string_view text, const Take& take);

  std::string line_;  // a line that is not complete yet
  std::string data_;  // an event that is not complete yet
  v1::GenerateResponse delta_;
  absl::Status status_;
  bool done_ = false;
  bool counted_ = false;  // the usage has arrived
  uint32_t texts_ = 0;
};

}  // namespace aft::client
