#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/api/model_runner.h"
#include "model/api/sampling_params.h"

namespace aft::server {

// The data that a running stream leaves, so that another stream can continue from there.
struct ResumePoint {
  // Before the last of the stream's tokens. Null only in Outcome::hand_over: it could not be read.
  std::shared_ptr<const KeptState> state;
  std::vector<TokenId> outputs;  // those since the last resume point, or since the stream began
};

// Takes the resume points of one stream. The engine thread makes all calls, which must not block.
class ResumePointSink {
 public:
  virtual ~ResumePointSink() = default;

  // Whether the sink accepts a resume point now. False: it still works on the last one, so this one
  // is left out.
  virtual bool Ready() = 0;
  // REQUIRES: Ready.
  virtual void OnResumePoint(ResumePoint point) = 0;
};

// How a stream survives its server.
struct Survival {
  // The client can resume the stream, so a drain ends the stream instead of waiting for it.
  bool resumable = false;
  std::shared_ptr<ResumePointSink> sink{};  // null: the stream leaves no resume points
  // The number of tokens that are read or generated between two resume points. 0: the only resume
  // point is that of a drain (Outcome::hand_over).
  int64_t interval = 0;
};

}  // namespace aft::server
