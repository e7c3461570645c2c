// What browsers have, and TypeScript's description of them has not, or not for the target of an event.
interface Document { featurePolicy?: { allowsFeature(name: string): boolean } }
interface Navigator { gpu?: any }
interface Window { clicked?: string }
interface Element { dataset: DOMStringMap; disabled: boolean; inert: boolean }
interface EventTarget { closest?: (selector: string) => Element | null }
interface Event { key?: string; dataTransfer?: DataTransfer | null }
