#pragma once

#include <string>

#include "base/check.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace aft {

// A message from its text-proto, which must be valid.
template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  AFT_CHECK(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

// Expects that the message has these fields and no others.
template <typename Message>
void ExpectText(const Message& message, const std::string& text) {
  EXPECT_EQ(message.ShortDebugString(), FromText<Message>(text).ShortDebugString());
}

}  // namespace aft
