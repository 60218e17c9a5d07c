#pragma once

#include "gtest/gtest.h"
#include "server/engine/sequence_state.h"

namespace aft::server {

inline void ExpectSameState(const SequenceState& a, const SequenceState& b) {
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.snapshot, b.snapshot);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.outputs, b.outputs);
  EXPECT_EQ(a.history, b.history);
  EXPECT_EQ(a.pending, b.pending);
  EXPECT_EQ(a.had, b.had);
  EXPECT_EQ(a.note, b.note);
}

}  // namespace aft::server
