/** Nobody can answer in a file. The build of the export puts this module in the place of `questions/question-card.tsx`. */

export function QuestionCard() {
  return null;
}

export function AnsweredCard() {
  return null;
}
