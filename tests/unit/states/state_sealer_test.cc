#include "server/states/state_sealer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/property/random_inputs.h"
#include "tests/support/same_state.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StateSealerTest : public testing::Test {
 protected:
  // A file with that key.
  std::string KeyFile(const std::string& name, const std::string& key) {
    WriteBytes(folder_.File(name), key);
    return folder_.File(name);
  }
  static StateSealer Make(const std::vector<std::string>& files = {}) {
    auto sealer = StateSealer::Create(files);
    EXPECT_TRUE(sealer.ok()) << sealer.status();
    return *std::move(sealer);
  }

  static SequenceState State(size_t snapshot_bytes = 500) {
    SequenceState state;
    state.model = 0x0123456789ABCDEF;
    state.snapshot = std::string(snapshot_bytes, 's');
    state.tokens = 12345678901;
    state.outputs = 77;
    state.history = 0xFEDCBA9876543210;
    state.pending = 200;
    state.had = {{.id = 3, .sampled = 0}, {.id = 200, .sampled = 77}};
    return state;
  }
  static void ExpectRefused(const StateSealer& sealer, const std::string& sealed,
                            const std::string& why) {
    EXPECT_THAT(sealer.Open(sealed).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("not a state that can be used here"), HasSubstr(why))));
  }

  TempFolder folder_;
  TestRandom random_;
};

TEST_F(StateSealerTest, OpensWhatItSealed) {
  const StateSealer sealer = Make();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100'000}}) {
    const SequenceState state = State(bytes);
    const std::string sealed = *sealer.Seal(state);
    EXPECT_EQ(static_cast<int64_t>(sealed.size()), StateSealer::SealedBytes(state));
    EXPECT_LE(StateBytes(state), kStateObjectBytes + static_cast<int64_t>(sealed.size()));
    const auto opened = sealer.Open(sealed);
    ASSERT_TRUE(opened.ok()) << opened.status();
    ExpectSameState(*opened, state);
  }
  ExpectSameState(*sealer.Open(*sealer.Seal(SequenceState())), SequenceState());
  SequenceState noted = State(20);
  noted.note = "a stored response";
  const std::string sealed = *sealer.Seal(noted);
  EXPECT_EQ(static_cast<int64_t>(sealed.size()), StateSealer::SealedBytes(noted));
  ExpectSameState(*sealer.Open(sealed), noted);
}

TEST_F(StateSealerTest, TheBytesRevealNothingOfTheState) {
  const StateSealer sealer = Make();
  SequenceState state = State(4096);  // the same byte throughout
  const std::string sealed = *sealer.Seal(state);
  EXPECT_EQ(*sealer.Seal(state), sealed);  // SIV: equal states are equal bytes
  const std::string body = sealed.substr(32);
  for (size_t at = 0; at + 16 <= body.size(); at += 16) {
    ASSERT_EQ(body.find(body.substr(at, 16), at + 1), std::string::npos) << at;
  }
  // One bit of the state changes all bytes.
  state.snapshot.back() = 't';
  const std::string other = *sealer.Seal(state);
  int equal = 0;
  for (size_t at = 16; at < sealed.size(); ++at) equal += sealed[at] == other[at] ? 1 : 0;
  EXPECT_LT(equal, 60);  // one in 256 of the 4164 bytes is expected to be equal
  const std::string elsewhere = *sealer.Seal(state, "id");
  EXPECT_NE(elsewhere, other);
  EXPECT_FALSE(sealer.Open(elsewhere).ok());
  EXPECT_TRUE(sealer.Open(elsewhere, "id").ok());
}

TEST_F(StateSealerTest, TenThousandDamagedStatesAreRefused) {
  const StateSealer sealer = Make();
  const std::string good = *sealer.Seal(State());
  const auto size = static_cast<int64_t>(good.size());
  for (int i = 0; i < 10'000; ++i) {
    std::string bad = good;
    const auto at = static_cast<size_t>(random_.Below(size));
    switch (random_.Below(4)) {
      case 0:  // flips a bit
        bad[at] = static_cast<char>(bad[at] ^ (1 << random_.Below(8)));
        break;
      case 1:  // cuts off the end
        bad.resize(at);
        break;
      case 2:  // inserts a byte
        bad.insert(at, 1, static_cast<char>(random_.Below(256)));
        break;
      default:  // repeats a part
        bad.replace(at, good.size() - at, good.substr(static_cast<size_t>(random_.Below(size))));
        break;
    }
    if (bad == good) continue;
    ASSERT_EQ(sealer.Open(bad).status().code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

TEST_F(StateSealerTest, SaysWhatIsWrong) {
  const StateSealer sealer = Make();
  const std::string good = *sealer.Seal(State());
  ExpectRefused(sealer, "", "these bytes are not a sealed state");
  ExpectRefused(sealer, good.substr(0, 32), "these bytes are not a sealed state");
  ExpectRefused(sealer, "X" + good.substr(1), "these bytes are not a sealed state");
  ExpectRefused(sealer, "AFTSEAL1" + good.substr(8),
                "AFTSEAL1 is of another version of the server");
  ExpectRefused(sealer, "AFTSEAL9" + good.substr(8),
                "AFTSEAL9 is of another version of the server");
  ExpectRefused(sealer, good.substr(0, 33), "damaged or forged");
  ExpectRefused(sealer, good.substr(0, good.size() - 1), "damaged or forged");
  ExpectRefused(Make(), good, "states.key_files");  // another process
}

TEST_F(StateSealerTest, AKeyIsReplacedWithoutLosingSealedStates) {
  const std::string before = KeyFile("before", std::string(32, 'b'));
  const std::string now = KeyFile("now", std::string(64, 'n'));
  const StateSealer both = Make({now, before});
  EXPECT_TRUE(both.Open(*Make({before}).Seal(State())).ok());
  EXPECT_TRUE(Make({now}).Open(*both.Seal(State())).ok());
  ExpectRefused(Make({before}), *both.Seal(State()), "a key that this server does not have");
}

TEST_F(StateSealerTest, KeysThatCannotBeUsedAreNamed) {
  EXPECT_THAT(StateSealer::Create({folder_.File("none")}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_THAT(StateSealer::Create({KeyFile("short", std::string(31, 'x'))}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("short"), HasSubstr("at least 32"))));
  EXPECT_THAT(StateSealer::Create({KeyFile("long", std::string(4097, 'x'))}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("long"), HasSubstr("at most 4096"))));
}

}  // namespace
}  // namespace aft::server
