// Tests the shipped classifier of languages, with its real weights, on sentences that were written
// for this test.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "model/api/load.h"
#include "model/checkpoint/checkpoint.h"

namespace aft {
namespace {

constexpr char kLanguages[] = "model/zoo/languages-aft-local";

const std::vector<std::pair<std::string, std::string>>& Sentences() {
  static const auto& sentences = *new std::vector<std::pair<std::string, std::string>>{
      {"cs", "Zítra půjdeme na trh a koupíme chléb, jablka a trochu sýra pro děti."},
      {"da", "I morgen går vi på markedet og køber brød, æbler og lidt ost til børnene."},
      {"de", "Morgen gehen wir auf den Markt und kaufen Brot, Äpfel und etwas Käse."},
      {"el", "Αύριο θα πάμε στην αγορά και θα αγοράσουμε ψωμί, μήλα και λίγο τυρί."},
      {"en", "Tomorrow we will go to the market and buy bread, apples and some cheese."},
      {"es", "Mañana iremos al mercado y compraremos pan, manzanas y un poco de queso."},
      {"fi", "Huomenna menemme torille ja ostamme leipää, omenoita ja vähän juustoa."},
      {"fr", "Demain nous irons au marché et nous achèterons du pain et des pommes."},
      {"hu", "Holnap elmegyünk a piacra, és kenyeret, almát és egy kis sajtot veszünk."},
      {"id", "Besok kami akan pergi ke pasar dan membeli roti, apel, dan sedikit keju."},
      {"it", "Domani andremo al mercato e compreremo pane, mele e un po' di formaggio."},
      {"ja", "明日は市場に行って、子どもたちのためにパンとりんごとチーズを少し買います。"},
      {"nl", "Morgen gaan we naar de markt en kopen we brood, appels en een beetje kaas."},
      {"pl", "Jutro pójdziemy na targ i kupimy chleb, jabłka i trochę sera dla dzieci."},
      {"pt-br", "Amanhã vamos à feira comprar pão, maçãs e um pouco de queijo."},
      {"ru", "Завтра мы пойдём на рынок и купим хлеб, яблоки и немного сыра для детей."},
      {"sv", "I morgon går vi till torget och köper bröd, äpplen och lite ost till barnen."},
      {"tr", "Yarın pazara gideceğiz ve çocuklar için ekmek, elma ve biraz peynir alacağız."},
      {"vi", "Ngày mai chúng tôi sẽ đi chợ và mua bánh mì, táo và một ít phô mai."},
      {"zh", "明天我们去市场，给孩子们买面包、苹果和一点奶酪。"}};
  return sentences;
}

// The logits of every sentence: the means of the logits of its tokens.
std::vector<std::vector<float>> Serve(const std::string& format, size_t labels) {
  LoadOptions options;
  options.checkpoint_dir = kLanguages;
  options.weight_format = format;
  const auto model = LoadModel(options);
  EXPECT_TRUE(model.ok()) << model.status();
  std::vector<EncoderInput> inputs;
  for (const auto& [language, text] : Sentences()) {
    inputs.push_back({.text = *model->tokenizer->Encode(text)});
  }
  const auto vectors = model->encoder->Encode(inputs);
  EXPECT_TRUE(vectors.ok()) << vectors.status();
  std::vector<std::vector<float>> means;
  for (const TokenVectors& tokens : *vectors) {
    std::vector<float>& mean = means.emplace_back(labels);
    for (size_t i = 0; i < tokens.size(); ++i) {
      mean[i % labels] +=
          tokens[i] * static_cast<float>(labels) / static_cast<float>(tokens.size());
    }
  }
  return means;
}

class LanguagesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto checkpoint = ReadCheckpoint(kLanguages);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
  }
  size_t labels() const { return checkpoint_.config.labels.size(); }

  Checkpoint checkpoint_;
};

TEST_F(LanguagesTest, TellsTheLanguageOfEverySentence) {
  for (const std::string format : {"stored", "fp32", "bf16", "int8"}) {
    const std::vector<std::vector<float>> logits = Serve(format, labels());
    for (size_t i = 0; i < Sentences().size(); ++i) {
      const auto best = std::max_element(logits[i].begin(), logits[i].end()) - logits[i].begin();
      EXPECT_EQ(checkpoint_.config.labels[static_cast<size_t>(best)], Sentences()[i].first)
          << format;
    }
  }
}

}  // namespace
}  // namespace aft
