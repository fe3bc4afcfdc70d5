/** Open a dialog over the page. Returns a function that closes it and gives the focus back. */
export function openModal(element: HTMLDialogElement): () => void {
  const before = document.activeElement;
  element.showModal();
  return () => {
    element.close(); // as long as it is open, nothing outside of it takes the focus
    if (before instanceof HTMLElement && before.isConnected) before.focus();
  };
}
